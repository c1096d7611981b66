//! What an agent answers when its server withdraws an order, or misses news of one.
//!
//! Pure, and the only home of these rules: the agent and both simulated agents decide by them, so
//! that no simulation is more talkative than the agent it stands for.

/// What an agent has on record about one order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrderRecord {
    /// Nothing: as far as the agent knows, the order never arrived.
    Missing,
    /// It arrived, as its id is remembered, and how far it got is not known any more.
    Lost,
    /// It arrived, and nothing was done for it that cannot be left at that.
    NotStarted,
    /// It is being carried out.
    Started,
    /// It has a result.
    Ended,
}

/// What an agent does about an order that its server withdraws.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WithdrawalReply {
    /// Record the result `withdrawn` and report it. The order is never carried out, even if it
    /// arrives later.
    Withdrawn,
    /// Record the result `unknown` and report it: something may have been done.
    Lost,
    /// Say nothing yet: the executor drops the order if it still can, and reports the result.
    Undecided,
    /// Report the recorded result again.
    Result,
}

/// What an agent does about an order that its server believes to be in progress and that the
/// agent's sync did not mention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InquiryReply {
    /// Record the result `unknown` and report it. The order is never carried out again.
    Lost,
    /// Nothing: every sync lists the unfinished orders.
    InProgress,
    /// Report the recorded result again.
    Result,
}

impl OrderRecord {
    /// The server withdraws the order. Every withdrawal gets a reply: until then the server waits,
    /// and gives that host nothing else to do.
    pub fn on_withdrawal(self) -> WithdrawalReply {
        match self {
            OrderRecord::Missing | OrderRecord::NotStarted => WithdrawalReply::Withdrawn,
            OrderRecord::Lost => WithdrawalReply::Lost,
            OrderRecord::Started => WithdrawalReply::Undecided,
            OrderRecord::Ended => WithdrawalReply::Result,
        }
    }

    /// The server asks about an order that it knows to have been started.
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
    fn only_an_order_without_a_record_is_reported_as_lost() {
        let lost = ALL.map(|record| record.on_inquiry() == InquiryReply::Lost);
        assert_eq!(lost, [true, true, false, false, false]);
    }
}
