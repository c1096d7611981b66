//! How an agent replies when its service withdraws an order, or asks about an order that the agent
//! has not reported.
//!
//! Pure rules, defined only here: the agent and both simulated agents use them, so that no
//! simulated agent reports more than a real one would.

/// The state of one order in an agent's records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrderRecord {
    /// No record: as far as the agent knows, the order never arrived.
    Missing,
    /// The order arrived, because its id is recorded, but its progress is lost.
    Lost,
    /// The order arrived, and the agent has done nothing that it cannot abandon.
    NotStarted,
    Started,
    Ended,
}

/// How an agent reacts when its service withdraws an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WithdrawalReply {
    /// Record the result `withdrawn` and report it. The order is never carried out, even if it
    /// arrives later.
    Withdrawn,
    /// Record the result `unknown` and report it: the order may have been carried out partly.
    Lost,
    /// Do not reply yet: the executor drops the order if it still can, and reports the result.
    Undecided,
    /// Report the recorded result again.
    Result,
}

/// How an agent reacts when its service asks about an order that is in progress according to the
/// server, but that the agent's sync did not mention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InquiryReply {
    /// Record the result `unknown` and report it. The order is never carried out again.
    Lost,
    /// No reaction: every sync lists the unfinished orders.
    InProgress,
    /// Report the recorded result again.
    Result,
}

impl OrderRecord {
    /// Decides the reaction to a withdrawal. Every withdrawal eventually gets a reply: until then
    /// the service waits, and sends that host no other order.
    pub fn on_withdrawal(self) -> WithdrawalReply {
        match self {
            OrderRecord::Missing | OrderRecord::NotStarted => WithdrawalReply::Withdrawn,
            OrderRecord::Lost => WithdrawalReply::Lost,
            OrderRecord::Started => WithdrawalReply::Undecided,
            OrderRecord::Ended => WithdrawalReply::Result,
        }
    }

    /// Decides the reaction to an inquiry about an order that the service knows to have started.
    pub fn on_inquiry(self) -> InquiryReply {
        match self {
            OrderRecord::Missing | OrderRecord::Lost => InquiryReply::Lost,
            OrderRecord::NotStarted | OrderRecord::Started => InquiryReply::InProgress,
            OrderRecord::Ended => InquiryReply::Result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [OrderRecord; 5] = [
        OrderRecord::Missing,
        OrderRecord::Lost,
        OrderRecord::NotStarted,
        OrderRecord::Started,
        OrderRecord::Ended,
    ];

    #[test]
    fn order_that_never_arrived_is_reported_as_withdrawn() {
        let withdrawn = ALL.map(|record| record.on_withdrawal() == WithdrawalReply::Withdrawn);
        assert_eq!(withdrawn, [true, false, true, false, false]);
    }

    #[test]
    fn only_order_without_record_is_reported_as_lost() {
        let lost = ALL.map(|record| record.on_inquiry() == InquiryReply::Lost);
        assert_eq!(lost, [true, true, false, false, false]);
    }
}
