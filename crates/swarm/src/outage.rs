//! Simulates network outages: when a host is disconnected from its service, and for how long.

use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;

use crate::Rng;
use crate::behavior::Behavior;

/// Minimum and maximum length of an outage, in seconds at normal speed.
const OUTAGE_SECONDS: (u64, u64) = (30, 300);

/// The outages of one host.
pub(crate) struct OutageSchedule {
    share: f64,
    speed: f64,
    state: OutageState,
}

enum OutageState {
    Never,
    StartsAt(Instant),
    EndsAt(Instant),
}

impl OutageSchedule {
    pub(crate) fn new(behavior: &Behavior, chance: &mut Rng) -> OutageSchedule {
        let Behavior { offline: share, speed, .. } = *behavior;
        let mut outage = OutageSchedule { share, speed, state: OutageState::Never };
        outage.state = outage.next_start(chance);
        outage
    }

    /// Chooses the start of the next outage, so that outages reach the configured share of time in
    /// the long run.
    fn next_start(&self, chance: &mut Rng) -> OutageState {
        if self.share <= 0.0 {
            return OutageState::Never;
        }
        let (least, most) = OUTAGE_SECONDS;
        let mean = (least + most) as f64 / 2.0;
        let share = self.share.min(0.99);
        OutageState::StartsAt(
            Instant::now() + self.scaled(2.0 * chance.next_f64() * mean * (1.0 - share) / share),
        )
    }

    fn scaled(&self, seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds / self.speed.max(0.001))
    }

    /// How long the current outage lasts, if there is one.
    pub(crate) fn remaining(&mut self, chance: &mut Rng) -> Option<Duration> {
        let now = Instant::now();
        match self.state {
            OutageState::EndsAt(end) if now < end => Some(end - now),
            OutageState::EndsAt(_) => {
                self.state = self.next_start(chance);
                None
            }
            OutageState::StartsAt(start) if start <= now => {
                let (least, most) = OUTAGE_SECONDS;
                let lasts = self.scaled(chance.between(least, most) as f64);
                self.state = OutageState::EndsAt(now + lasts);
                Some(lasts)
            }
            OutageState::StartsAt(_) | OutageState::Never => None,
        }
    }

    /// Completes when the next outage starts.
    pub(crate) fn wait_for_start(&self) -> impl Future<Output = ()> + use<> {
        let at = match self.state {
            OutageState::StartsAt(at) => Some(at),
            OutageState::Never | OutageState::EndsAt(_) => None,
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
        let mut rng = Rng::new(1);
        let mut outage =
            OutageSchedule::new(&Behavior { offline: 0.5, ..Behavior::default() }, &mut rng);
        let mut cut = 0;
        for _ in 0..86_400 {
            tokio::time::advance(Duration::from_secs(1)).await;
            cut += u32::from(outage.remaining(&mut rng).is_some());
        }
        assert!((38_000..48_000).contains(&cut), "{cut} seconds of a day");
        let mut never =
            OutageSchedule::new(&Behavior { offline: 0.0, ..Behavior::default() }, &mut rng);
        assert_eq!(never.remaining(&mut rng), None);
    }
}
