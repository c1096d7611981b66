//! Guessers are stopped, and the owner is not.
//!
//! A guess is counted against the address it comes from, against the name from that address, and against the name. A browser that
//! has signed in before as this person has a bucket of its own and none of these: however much strangers guess,
//! from one address or from thousands, or through the same proxy, its owner comes in.
//!
//! The same limits hold for a code or a password that someone who is signed in has to give once
//! more: a stolen session must not be a way to guess the second factor.

use std::net::IpAddr;
use std::time::Duration;

use httpkit::problem::{ApiError, Code};
use httpkit::throttle::{Throttle, source_bytes};
use vocab::UserId;

/// Guesses at one name from one address, or from one browser that is known.
const NEAR: u32 = 10;
/// Guesses at any name from one address.
const ADDRESS: u32 = 50;
/// Guesses at one name from everywhere.
const NAME: u32 = 100;
/// Codes that someone who is signed in may try.
const CODES: u32 = 10;

/// Ways to a provider and back through one address. Nothing can be guessed there; but each may make us ask the provider.
const WAYS: u32 = 200;

/// What a browser has shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Browser {
    /// That it has signed in before as the person it signs in as now.
    Known,
    /// That it has signed in before as somebody else.
    OfAnother,
    /// Nothing.
    Unknown,
}

/// All buckets of this process.
pub(crate) struct LoginThrottle {
    devices: Throttle,
    near: Throttle,
    addresses: Throttle,
    names: Throttle,
    codes: Throttle,
    ways: Throttle,
}

impl LoginThrottle {
    pub(crate) fn new() -> LoginThrottle {
        LoginThrottle {
            devices: Throttle::new(NEAR, Duration::from_secs(30)),
            near: Throttle::new(NEAR, Duration::from_secs(60)),
            addresses: Throttle::new(ADDRESS, Duration::from_secs(10)),
            names: Throttle::new(NAME, Duration::from_secs(30)),
            codes: Throttle::new(CODES, Duration::from_secs(60)),
            ways: Throttle::new(WAYS, Duration::from_secs(1)),
        }
    }

    /// Notes a try to sign in, before the database is asked anything. `device` is what a browser showed that has signed
    /// in before, as whomever.
    pub(crate) fn arrive(&self, from: IpAddr, device: Option<&str>) -> Result<(), ApiError> {
        match device {
            Some(device) => take(&self.devices, &[device.as_bytes()]),
            None => take(&self.addresses, &[&source_bytes(from)]),
        }
    }

    /// Notes as whom, after [`LoginThrottle::arrive`].
    pub(crate) fn knock(&self, name: &str, from: IpAddr, browser: Browser) -> Result<(), ApiError> {
        let from = source_bytes(from);
        match browser {
            Browser::Known => return Ok(()),
            Browser::OfAnother => take(&self.addresses, &[&from])?,
            Browser::Unknown => {}
        }
        take(&self.near, &[&from, name.as_bytes()])?;
        take(&self.names, &[name.as_bytes()])
    }

    /// Notes that someone gives a code of the second factor, as a user who has shown a password or a
    /// session; `None` if they have shown neither. A known browser has no advantage here: the session may
    /// be stolen, and its cookies with it.
    pub(crate) fn code(&self, user: Option<UserId>, from: IpAddr) -> Result<(), ApiError> {
        take(&self.addresses, &[&source_bytes(from)])?;
        match user {
            Some(user) => take(&self.codes, &[user.to_string().as_bytes()]),
            None => Ok(()),
        }
    }

    /// Notes that somebody goes to a provider, or comes back.
    pub(crate) fn pass(&self, from: IpAddr) -> Result<(), ApiError> {
        take(&self.ways, &[&source_bytes(from)])
    }
}

fn take(throttle: &Throttle, key: &[&[u8]]) -> Result<(), ApiError> {
    throttle.take(key).map_err(|wait| {
        let seconds = wait.as_secs() + 1;
        ApiError::new(Code::RateLimited, format!("Too many attempts. Try again in {seconds} s."))
            .with_header(axum::http::header::RETRY_AFTER, seconds.to_string())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    fn address(n: u16) -> IpAddr {
        IpAddr::from([10, 0, (n >> 8) as u8, (n & 255) as u8])
    }

    /// A try to sign in, from a browser that is known if it shows a device.
    fn knock(
        gate: &LoginThrottle,
        name: &str,
        from: IpAddr,
        device: Option<&str>,
    ) -> Result<(), ApiError> {
        gate.arrive(from, device)?;
        gate.knock(name, from, device.map_or(Browser::Unknown, |_| Browser::Known))
    }

    #[test]
    fn browser_of_another_person_is_limited_like_a_stranger() {
        let gate = LoginThrottle::new();
        let try_as = |device: &str| {
            gate.arrive(HERE, Some(device))?;
            gate.knock("ann", HERE, Browser::OfAnother)
        };
        let tries = (0..50).filter(|n| try_as(&format!("device {n}")).is_ok()).count();
        assert_eq!(tries, NEAR as usize);
    }

    #[test]
    fn a_guesser_is_stopped_and_the_owner_at_another_address_is_not() {
        let gate = LoginThrottle::new();
        let tries = (0..50).filter(|_| knock(&gate, "ann", HERE, None).is_ok()).count();
        assert_eq!(tries, NEAR as usize);
        assert!(knock(&gate, "ann", address(1), None).is_ok());
    }

    #[test]
    fn one_address_cannot_go_through_all_names() {
        let gate = LoginThrottle::new();
        let tries =
            (0..500).filter(|n| knock(&gate, &format!("user-{n}"), HERE, None).is_ok()).count();
        assert_eq!(tries, ADDRESS as usize);
    }

    #[test]
    fn who_goes_to_a_provider_too_often_waits_and_nobody_elsewhere_does() {
        let gate = LoginThrottle::new();
        let refused = (0..100_000).any(|_| gate.pass(HERE).is_err());
        assert!(refused);
        assert!(gate.pass(address(1)).is_ok());
    }

    #[test]
    fn thousands_of_addresses_do_not_keep_out_a_browser_that_is_known() {
        let gate = LoginThrottle::new();
        let tries = (0..5_000).filter(|n| knock(&gate, "ann", address(*n), None).is_ok()).count();
        assert_eq!(tries, NAME as usize);
        assert!(knock(&gate, "ann", address(9), None).is_err());
        assert!(knock(&gate, "ann", address(9), Some("ann's laptop")).is_ok());
    }

    #[test]
    fn codes_of_one_user_are_limited_whichever_address_they_come_from() {
        let gate = LoginThrottle::new();
        let user = UserId::new(jiff::Timestamp::UNIX_EPOCH, 1);
        let tries = (0..4_000).filter(|n| gate.code(Some(user), address(*n)).is_ok()).count();
        assert_eq!(tries, CODES as usize);
    }
}
