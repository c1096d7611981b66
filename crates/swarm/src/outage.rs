//! Simulates network outages: when a host is disconnected from its server, and for how long.

use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;

use crate::Chance;
use crate::behave::Nature;

/// Minimum and maximum length of an outage, in seconds at normal speed.
const OUTAGE_SECONDS: (u64, u64) = (30, 300);

/// The outages of one host.
pub(crate) struct Outage {
    share: f64,
    speed: f64,
    state: State,
}

enum State {
    Never,
    From(Instant),
    Until(Instant),
}

impl Outage {
    pub(crate) fn of(nature: &Nature, chance: &mut Chance) -> Outage {
        let Nature { offline: share, speed, .. } = *nature;
        let mut outage = Outage { share, speed, state: State::Never };
        outage.state = outage.next(chance);
        outage
    }

    /// Chooses the start of the next outage, so that outages reach the configured share of time in
    /// the long run.
    fn next(&self, chance: &mut Chance) -> State {
        if self.share <= 0.0 {
            return State::Never;
        }
        let (least, most) = OUTAGE_SECONDS;
        let mean = (least + most) as f64 / 2.0;
        let share = self.share.min(0.99);
        State::From(
            Instant::now() + self.scaled(2.0 * chance.share() * mean * (1.0 - share) / share),
        )
    }

    fn scaled(&self, seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds / self.speed.max(0.001))
    }

    /// How long the current outage lasts, if there is one.
    pub(crate) fn holds_for(&mut self, chance: &mut Chance) -> Option<Duration> {
        let now = Instant::now();
        match self.state {
            State::Until(end) if now < end => Some(end - now),
            State::Until(_) => {
                self.state = self.next(chance);
                None
            }
            State::From(start) if start <= now => {
                let (least, most) = OUTAGE_SECONDS;
                let lasts = self.scaled(chance.between(least, most) as f64);
                self.state = State::Until(now + lasts);
                Some(lasts)
            }
            State::From(_) | State::Never => None,
        }
    }

    /// Completes when the next outage starts.
    pub(crate) fn begins(&self) -> impl Future<Output = ()> + use<> {
        let at = match self.state {
            State::From(at) => Some(at),
            State::Never | State::Until(_) => None,
        };
        async move {
            match at {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Half of the time, over one simulated day.
    #[tokio::test(start_paused = true)]
    async fn outages_reach_the_configured_share_of_time() {
        let mut chance = Chance::of(1);
        let mut outage = Outage::of(&Nature { offline: 0.5, ..Nature::default() }, &mut chance);
        let mut cut = 0;
        for _ in 0..86_400 {
            tokio::time::advance(Duration::from_secs(1)).await;
            cut += u32::from(outage.holds_for(&mut chance).is_some());
        }
        assert!((38_000..48_000).contains(&cut), "{cut} seconds of a day");
        let mut never = Outage::of(&Nature { offline: 0.0, ..Nature::default() }, &mut chance);
        assert_eq!(never.holds_for(&mut chance), None);
    }
}
