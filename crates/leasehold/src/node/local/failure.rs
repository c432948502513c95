//! Errors of the file, as errors of a node.

use rusqlite::ErrorCode;

use crate::base::name::shown;
use crate::node::NodeError;

/// Why an operation on the file failed.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    /// The error to answer with.
    Error(NodeError),
    /// Another process has locked the file: try again.
    Busy,
    /// The path names another file by now: open that one.
    Moved,
}

impl Failure {
    pub(super) fn into_error(self) -> NodeError {
        match self {
            Self::Error(error) => error,
            Self::Busy => NodeError::StoreUnavailable {
                why: "another process keeps it locked (is that process stopped?)".into(),
            },
            Self::Moved => NodeError::StoreUnavailable {
                why: "its file was moved or deleted while it was in use".into(),
            },
        }
    }
}

impl From<NodeError> for Failure {
    fn from(error: NodeError) -> Self {
        Self::Error(error)
    }
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        let text = shown(error.to_string().as_bytes());
        let error = match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => return Self::Busy,
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => damaged(&text),
            Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => NodeError::Unusable {
                why: format!(
                    "the store cannot be written ({text}); check the permissions of the file and \
                     of its directory"
                ),
            },
            Some(ErrorCode::CannotOpen) => NodeError::Unusable {
                why: format!(
                    "the store cannot be opened ({text}); check the path and its permissions"
                ),
            },
            // SQLite has rolled the transaction back.
            Some(ErrorCode::DiskFull) => NodeError::CannotPersist {
                why: "the disk is full; free some space and try again".into(),
            },
            Some(ErrorCode::SystemIoFailure) => NodeError::Refused {
                why: format!(
                    "the store cannot be read or written ({text}); check the disk, and whether \
                     files beside it (-wal, -shm) were deleted or replaced while it was in use"
                ),
            },
            // Wrong types, missing tables or columns: another program changed the file.
            Some(ErrorCode::Unknown) | None => damaged(&text),
            _ => NodeError::Refused { why: text },
        };
        Self::Error(error)
    }
}

pub(super) fn damaged(what: &str) -> NodeError {
    NodeError::Unusable {
        why: format!(
            "the store cannot be used: {what}; if it is not a file of another program, stop all \
             programs that use it and move it away; leasehold then creates a new store"
        ),
    }
}
