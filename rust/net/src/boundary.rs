//! What the two boundary links of a rank have in common: how a transfer can end, and last words.
//!
//! `outgoing` sends rows and `incoming` receives them.

use stagelink_proto::conversation::Conversation;
use stagelink_proto::error::ProtocolError;
use stagelink_proto::frame::{Header, Kind};

use crate::error::LinkError;

/// What ended a transfer.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The ring's fate, or a signal: the caller returns it as it is.
    Ended(LinkError),
    /// A signal inside a frame, so that the link is of no more use.
    Torn(LinkError),
    /// The peer closed or reset.
    Lost,
    /// The peer stopped sending inside a frame, after so many seconds.
    Late(f64),
    /// The peer broke a rule.
    Broken(ProtocolError),
    /// This side broke a rule.
    Own(ProtocolError),
    /// The peer sent the ring's fate: the payload of its frame.
    Fate(Vec<u8>),
    /// The peer said bye where rows were expected.
    Bye,
}

/// What ends a wait in the middle of a frame ends the link.
pub(crate) fn tear(trouble: Trouble) -> Trouble {
    match trouble {
        Trouble::Ended(error) => Trouble::Torn(error),
        other => other,
    }
}

/// The header of the next fate or bye frame, where one may still be sent.
pub(crate) fn say(
    conversation: &mut Conversation,
    kind: Kind,
    payload: &[u8],
    checksums: bool,
) -> Option<Header> {
    let sequence = conversation.send(kind, None).ok()?;
    Header::for_payload(kind, sequence, 0, payload, checksums).ok()
}
