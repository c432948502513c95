//! What goes wrong with the file, in the words of a node.

use rusqlite::ErrorCode;

use crate::base::name::shown;
use crate::node::NodeError;

/// Why something could not be done.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    /// What to answer.
    Told(NodeError),
    /// Another process works on the file: try again.
    Busy,
    /// The path leads to another file by now: open that.
    Moved,
}

impl Failure {
    pub(super) fn into_error(self) -> NodeError {
        match self {
            Self::Told(error) => error,
            Self::Busy => NodeError::Unreachable {
                why: "another process keeps the store to itself (is it stopped?)".into(),
            },
            Self::Moved => NodeError::Unreachable {
                why: "the file was moved or deleted meanwhile".into(),
            },
        }
    }
}

impl From<NodeError> for Failure {
    fn from(error: NodeError) -> Self {
        Self::Told(error)
    }
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        let text = shown(error.to_string().as_bytes());
        let told = match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => return Self::Busy,
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => damaged(&text),
            Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => NodeError::Unusable {
                why: format!(
                    "the store cannot be written ({text}); check who owns it and its directory"
                ),
            },
            Some(ErrorCode::CannotOpen) => NodeError::Unusable {
                why: format!(
                    "the store cannot be opened ({text}); check the path and its permissions"
                ),
            },
            // Rolled back: nothing of it counts.
            Some(ErrorCode::DiskFull) => NodeError::CannotPersist {
                why: "the disk is full; make room and try again".into(),
            },
            Some(ErrorCode::SystemIoFailure) => NodeError::Refused {
                why: format!(
                    "the store cannot be read or written ({text}); check the disk, and whether \
                     somebody deleted or replaced files beside it (-wal, -shm) while it was in use"
                ),
            },
            // Wrong types, missing tables or columns: somebody meddled.
            Some(ErrorCode::Unknown) | None => damaged(&text),
            _ => NodeError::Refused { why: text },
        };
        Self::Told(told)
    }
}

pub(super) fn damaged(what: &str) -> NodeError {
    NodeError::Unusable {
        why: format!(
            "the store cannot be used: {what}; if it is not another program's file, stop all that \
             use it and move it away, and a new one will be made"
        ),
    }
}
