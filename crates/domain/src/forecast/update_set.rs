//! A set of pending updates of one kind of server, by their indexes.

/// A set of small numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UpdateSet(Vec<u64>);

impl UpdateSet {
    /// The first `count` updates.
    pub fn first(count: usize) -> UpdateSet {
        (0..count).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    pub fn len(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    pub fn intersects(&self, other: &UpdateSet) -> bool {
        self.0.iter().zip(&other.0).any(|(own, other)| own & other != 0)
    }

    /// Removes the updates in `other`.
    pub fn subtract(&mut self, other: &UpdateSet) {
        for (own, other) in self.0.iter_mut().zip(&other.0) {
            *own &= !other;
        }
    }
}

impl FromIterator<usize> for UpdateSet {
    fn from_iter<T: IntoIterator<Item = usize>>(indexes: T) -> UpdateSet {
        let mut set = UpdateSet::default();
        for index in indexes {
            let word = index / 64;
            if set.0.len() <= word {
                set.0.resize(word + 1, 0);
            }
            set.0[word] |= 1 << (index % 64);
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_different_length_are_compared_and_subtracted() {
        let mut set: UpdateSet = [1, 63, 64, 200].into_iter().collect();
        assert_eq!(set.len(), 4);
        let other: UpdateSet = [63, 64].into_iter().collect();
        assert!(set.intersects(&other) && other.intersects(&set));
        set.subtract(&other);
        assert_eq!((set.len(), set.intersects(&other)), (2, false));
        set.subtract(&UpdateSet::first(300));
        assert!(set.is_empty() && !set.intersects(&UpdateSet::first(300)));
        assert!(UpdateSet::default().is_empty());
    }
}
