//! Rate limits for sign-in attempts. They stop attackers without locking out the owner of an
//! account.
//!
//! An attempt counts against the client's address, against the name from that address, and against
//! the name. A browser that has signed in before as the same user has its own bucket and counts
//! against none of these. So its owner can sign in, however many attempts others make, from one
//! address, from thousands, or through the same proxy.
//!
//! The same limits apply when a signed-in user enters a code or a password again: a stolen session
//! must not allow guessing the second factor.

use std::net::IpAddr;
use std::time::Duration;

use httpkit::problem::{ApiError, Code};
use httpkit::throttle::{Throttle, counted_address_bytes};
use vocab::UserId;

/// Attempts per name from one address, or from one known browser.
const PER_NAME_AND_ADDRESS: u32 = 10;
/// Attempts for any name from one address.
const PER_ADDRESS: u32 = 50;
/// Attempts per name from all addresses.
const PER_NAME: u32 = 100;
/// Two-factor codes per signed-in user.
const CODES_PER_USER: u32 = 10;
/// Current passwords per signed-in user who changes the password.
const PASSWORDS_PER_USER: u32 = 10;

/// Messages that a user can cause by hand: links that confirm an address, and tests.
const EMAILS_PER_USER: u32 = 10;

/// OIDC redirects per address. They guess nothing, but each may cause requests to the identity
/// provider.
const REDIRECTS_PER_ADDRESS: u32 = 200;

/// What the device cookie proves about a browser.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BrowserHistory {
    /// It has signed in before as the same user.
    SameUser,
    /// It has signed in before as another user.
    OtherUser,
    /// It has no valid device cookie.
    NoCookie,
}

/// The buckets of this process.
pub(crate) struct LoginThrottle {
    devices: Throttle,
    names_by_address: Throttle,
    addresses: Throttle,
    names: Throttle,
    codes: Throttle,
    passwords: Throttle,
    redirects: Throttle,
    emails: Throttle,
}

impl LoginThrottle {
    pub(crate) fn new() -> LoginThrottle {
        LoginThrottle {
            devices: Throttle::new(PER_NAME_AND_ADDRESS, Duration::from_secs(30)),
            names_by_address: Throttle::new(PER_NAME_AND_ADDRESS, Duration::from_secs(60)),
            addresses: Throttle::new(PER_ADDRESS, Duration::from_secs(10)),
            names: Throttle::new(PER_NAME, Duration::from_secs(30)),
            codes: Throttle::new(CODES_PER_USER, Duration::from_secs(60)),
            passwords: Throttle::new(PASSWORDS_PER_USER, Duration::from_secs(60)),
            redirects: Throttle::new(REDIRECTS_PER_ADDRESS, Duration::from_secs(1)),
            emails: Throttle::new(EMAILS_PER_USER, Duration::from_secs(600)),
        }
    }

    /// Counts a sign-in attempt before any database query. `device` is the valid device cookie of a
    /// browser that has signed in before, as any user.
    pub(crate) fn count_attempt(&self, from: IpAddr, device: Option<&str>) -> Result<(), ApiError> {
        match device {
            Some(device) => take(&self.devices, &[device.as_bytes()]),
            None => take(&self.addresses, &[&counted_address_bytes(from)]),
        }
    }

    /// Counts the attempt against the name, after [`LoginThrottle::count_attempt`].
    pub(crate) fn count_name(
        &self,
        name: &str,
        from: IpAddr,
        browser: BrowserHistory,
    ) -> Result<(), ApiError> {
        let from = counted_address_bytes(from);
        match browser {
            BrowserHistory::SameUser => return Ok(()),
            BrowserHistory::OtherUser => take(&self.addresses, &[&from])?,
            BrowserHistory::NoCookie => {}
        }
        take(&self.names_by_address, &[&from, name.as_bytes()])?;
        take(&self.names, &[name.as_bytes()])
    }

    /// Counts a two-factor code. `user` is the user who entered the correct password or has a
    /// session; `None` if there is neither. A known browser has no advantage here: an attacker who
    /// stole the session may have its cookies too.
    pub(crate) fn count_code(&self, user: Option<UserId>, from: IpAddr) -> Result<(), ApiError> {
        take(&self.addresses, &[&counted_address_bytes(from)])?;
        match user {
            Some(user) => take(&self.codes, &[user.to_string().as_bytes()]),
            None => Ok(()),
        }
    }

    /// Counts a current password that a signed-in user entered. A known browser has no advantage
    /// here either.
    pub(crate) fn count_password(&self, user: UserId, from: IpAddr) -> Result<(), ApiError> {
        take(&self.addresses, &[&counted_address_bytes(from)])?;
        take(&self.passwords, &[user.to_string().as_bytes()])
    }

    /// Counts a message that a user sends to an address that nobody confirmed, or as a test.
    pub(crate) fn count_email(&self, user: UserId) -> Result<(), ApiError> {
        take(&self.emails, &[user.to_string().as_bytes()])
    }

    /// Counts a redirect to the identity provider or back.
    pub(crate) fn count_redirect(&self, from: IpAddr) -> Result<(), ApiError> {
        take(&self.redirects, &[&counted_address_bytes(from)])
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

    const ADDRESS_HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    fn address(n: u16) -> IpAddr {
        IpAddr::from([10, 0, (n >> 8) as u8, (n & 255) as u8])
    }

    /// A sign-in attempt. The browser is known if it sends a device cookie.
    fn count_name(
        throttle: &LoginThrottle,
        name: &str,
        from: IpAddr,
        device: Option<&str>,
    ) -> Result<(), ApiError> {
        throttle.count_attempt(from, device)?;
        throttle.count_name(
            name,
            from,
            device.map_or(BrowserHistory::NoCookie, |_| BrowserHistory::SameUser),
        )
    }

    #[test]
    fn browser_of_another_person_is_limited_like_a_stranger() {
        let throttle = LoginThrottle::new();
        let try_as = |device: &str| {
            throttle.count_attempt(ADDRESS_HERE, Some(device))?;
            throttle.count_name("ann", ADDRESS_HERE, BrowserHistory::OtherUser)
        };
        let tries = (0..50).filter(|n| try_as(&format!("device {n}")).is_ok()).count();
        assert_eq!(tries, PER_NAME_AND_ADDRESS as usize);
    }

    #[test]
    fn attacker_is_throttled_and_owner_elsewhere_is_not() {
        let throttle = LoginThrottle::new();
        let tries =
            (0..50).filter(|_| count_name(&throttle, "ann", ADDRESS_HERE, None).is_ok()).count();
        assert_eq!(tries, PER_NAME_AND_ADDRESS as usize);
        assert!(count_name(&throttle, "ann", address(1), None).is_ok());
    }

    #[test]
    fn one_address_cannot_try_every_name() {
        let throttle = LoginThrottle::new();
        let tries = (0..500)
            .filter(|n| count_name(&throttle, &format!("user-{n}"), ADDRESS_HERE, None).is_ok())
            .count();
        assert_eq!(tries, PER_ADDRESS as usize);
    }

    #[test]
    fn oidc_redirects_are_throttled_per_address() {
        let throttle = LoginThrottle::new();
        let refused = (0..100_000).any(|_| throttle.count_redirect(ADDRESS_HERE).is_err());
        assert!(refused);
        assert!(throttle.count_redirect(address(1)).is_ok());
    }

    #[test]
    fn attempts_from_many_addresses_do_not_block_a_known_browser() {
        let throttle = LoginThrottle::new();
        let tries =
            (0..5_000).filter(|n| count_name(&throttle, "ann", address(*n), None).is_ok()).count();
        assert_eq!(tries, PER_NAME as usize);
        assert!(count_name(&throttle, "ann", address(9), None).is_err());
        assert!(count_name(&throttle, "ann", address(9), Some("ann's laptop")).is_ok());
    }

    #[test]
    fn codes_are_limited_per_user_across_addresses() {
        let throttle = LoginThrottle::new();
        let user = UserId::new(jiff::Timestamp::UNIX_EPOCH, 1);
        let tries =
            (0..4_000).filter(|n| throttle.count_code(Some(user), address(*n)).is_ok()).count();
        assert_eq!(tries, CODES_PER_USER as usize);
    }
}
