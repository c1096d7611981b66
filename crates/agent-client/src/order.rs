//! Verifies orders: signed with the service's key, addressed to this host, and not expired.

use jiff::{SignedDuration, Timestamp};
use vocab::ServerId;
use wire::agent::{Envelope, Order};

use super::{Identity, from_base64};

/// Maximum time between an order's creation and its expiry. A host remembers the ids of its orders
/// for as long as they are valid, so that none is executed twice.
const VALID_FOR_MAX: SignedDuration = SignedDuration::from_hours(31 * 24);

/// Why an envelope contains no order to execute.
#[derive(Debug, thiserror::Error)]
pub enum OrderRefusal {
    /// The signature is invalid or made with another key. Nothing in the envelope can be trusted,
    /// not even its id, so the agent cannot report a result for it.
    #[error("the order is not signed with a trusted key of the service")]
    Signature,
    /// The signed text cannot be parsed as an order.
    #[error("the signed text is not a valid order")]
    NotAnOrder(#[source] serde_json::Error),
    /// The order is addressed to another host: someone replayed it here.
    #[error("the order is addressed to {0}")]
    OtherServer(ServerId),
    /// The order arrived too late to start. An agent that has already started it continues;
    /// otherwise it reports the expiry under the order's id.
    #[error("the order expired at {}", .0.expires_at)]
    Expired(Box<Order>),
    /// The validity is longer than the time for which a host remembers orders.
    #[error("the order is valid for more than 31 days, until {}", .0.expires_at)]
    ValidTooLong(Box<Order>),
}

/// Returns the order in an envelope if this host may execute it. `server_time` is the time
/// according to the service that sent it: the host's own clock may be years off.
///
/// `server_time` needs no comparison with earlier values. It is part of a signed response that is
/// bound to a nonce of this request, so an attacker cannot replay it, and can delay it only until
/// the request times out. Remembering the highest time ever seen would add nothing, and a service
/// whose clock was a day ahead for a minute could then give no orders for a day.
pub fn verify_order(
    envelope: &Envelope,
    host: &Identity,
    server_time: Timestamp,
) -> Result<Order, OrderRefusal> {
    let signature = from_base64(&envelope.signature).ok_or(OrderRefusal::Signature)?;
    // The envelope names a key, but it is not used: the signature must match a key that this host
    // trusts.
    host.orders_keys
        .signer(envelope.order.as_bytes(), &signature)
        .ok_or(OrderRefusal::Signature)?;
    let order: Order = serde_json::from_str(&envelope.order).map_err(OrderRefusal::NotAnOrder)?;
    if order.server_id != host.server_id {
        return Err(OrderRefusal::OtherServer(order.server_id));
    }
    if order.expires_at <= server_time {
        return Err(OrderRefusal::Expired(Box::new(order)));
    }
    if order.expires_at.duration_since(order.issued_at) > VALID_FOR_MAX {
        return Err(OrderRefusal::ValidTooLong(Box::new(order)));
    }
    Ok(order)
}

#[cfg(test)]
mod tests {
    use super::super::{HostKey, base64};
    use super::*;
    use ring::signature::{Ed25519KeyPair, KeyPair as _};
    use wire::agent::{EnrollResponse, Work};

    const SERVER: &str = "srv_01jcqk3m8ye0fr5cq0k6s8v2xw";

    fn key(byte: u8) -> Ed25519KeyPair {
        Ed25519KeyPair::from_seed_unchecked(&[byte; 32]).unwrap()
    }

    fn host() -> Identity {
        let response = EnrollResponse {
            server_id: SERVER.parse().unwrap(),
            tag: base64(&[1]),
            orders_key: base64(key(1).public_key().as_ref()),
            orders_keys: Vec::new(),
            counter: 0,
            sync_seconds: 60,
            signs_answers: true,
        };
        Identity::new(HostKey::generate(), response).unwrap()
    }

    fn at(minute: u8) -> Timestamp {
        format!("2026-11-15T04:{minute:02}:00Z").parse().unwrap()
    }

    fn signed(text: &str, by: u8) -> Envelope {
        Envelope {
            order: text.to_owned(),
            key: "any".to_owned(),
            signature: base64(key(by).sign(text.as_bytes()).as_ref()),
        }
    }

    fn scan(server: &str) -> String {
        let order = Order {
            id: "tsk_01jcqk3m8ye0fr5cq0k6s8v2xw".parse().unwrap(),
            server_id: server.parse().unwrap(),
            issued_at: at(0),
            expires_at: at(10),
            work: Work::Scan,
        };
        serde_json::to_string(&order).unwrap()
    }

    #[test]
    fn valid_order_for_this_host_is_accepted() {
        let order = verify_order(&signed(&scan(SERVER), 1), &host(), at(9)).unwrap();
        assert_eq!(order.work, Work::Scan);
    }

    /// Recorded with version 0.1.0 (`crates/wire/tests/recorded.rs`).
    #[test]
    fn recorded_orders_are_accepted_with_the_recorded_key() {
        let recording = include_str!("../../wire/tests/recorded/0.1.0.json");
        let recording: serde_json::Value = serde_json::from_str(recording).unwrap();
        let exchanges = recording["exchanges"].as_object().unwrap();
        let response = serde_json::from_value(exchanges["enroll"]["answer"].clone()).unwrap();
        let host = Identity::new(HostKey::generate(), response).unwrap();
        let mut believed = 0;
        for exchange in exchanges.values() {
            for envelope in exchange["answer"]["orders"].as_array().into_iter().flatten() {
                let envelope: Envelope = serde_json::from_value(envelope.clone()).unwrap();
                let server_time = exchange["answer"]["server_time"].as_str().unwrap();
                let order = verify_order(&envelope, &host, server_time.parse().unwrap()).unwrap();
                assert!(matches!(order.work, Work::Plan(_) | Work::Install(_)), "{order:?}");
                believed += 1;
            }
        }
        assert_eq!(believed, 3);
    }

    #[test]
    fn changed_order_or_other_key_is_rejected() {
        let mut changed = signed(&scan(SERVER), 1);
        changed.order = changed.order.replace("scan", "reboot");
        let damaged_signature = Envelope { signature: "!".to_owned(), ..signed(&scan(SERVER), 1) };
        for envelope in [changed, damaged_signature, signed(&scan(SERVER), 2)] {
            let refused = verify_order(&envelope, &host(), at(0));
            assert!(matches!(refused, Err(OrderRefusal::Signature)), "{refused:?}");
        }
    }

    #[test]
    fn signed_order_for_another_host_is_rejected() {
        let other = "srv_01jcqk3m8ye0fr5cq0k6s8v2xx";
        let refused = verify_order(&signed(&scan(other), 1), &host(), at(0));
        assert!(matches!(refused, Err(OrderRefusal::OtherServer(id)) if id.to_string() == other));
    }

    #[test]
    fn expired_order_is_rejected_with_its_id() {
        for late in [at(10), at(11)] {
            let refused = verify_order(&signed(&scan(SERVER), 1), &host(), late);
            assert!(
                matches!(refused, Err(OrderRefusal::Expired(order)) if order.work == Work::Scan)
            );
        }
    }

    #[test]
    fn order_valid_for_more_than_31_days_is_rejected() {
        let until = |expires_at: &str| {
            let mut order: Order = serde_json::from_str(&scan(SERVER)).unwrap();
            order.expires_at = expires_at.parse().unwrap();
            verify_order(&signed(&serde_json::to_string(&order).unwrap(), 1), &host(), at(0))
        };
        assert!(until("2026-12-16T04:00:00Z").is_ok());
        for late in ["2026-12-16T04:00:01Z", "9999-01-01T00:00:00Z"] {
            assert!(matches!(until(late), Err(OrderRefusal::ValidTooLong(_))), "{late}");
        }
    }

    #[test]
    fn signed_text_that_is_not_an_order_is_rejected() {
        let refused = verify_order(&signed("{}", 1), &host(), at(0));
        assert!(matches!(refused, Err(OrderRefusal::NotAnOrder(_))));
    }
}
