//! The numbers of the C interface, and which error has which.

use std::ffi::{CStr, c_int};

use crate::error::CommError;

/// Declares the codes, their C names for the test that reads the header, and their sentences.
macro_rules! codes {
    ($($rust:ident = $number:literal, $c:literal, $text:literal;)*) => {
        $(pub(super) const $rust: c_int = $number;)*

        /// Each code with its C name.
        #[cfg(test)]
        pub(super) const CODES: &[(&str, c_int)] = &[$(($c, $number)),*];

        pub(super) fn sentence(code: c_int) -> &'static CStr {
            match code {
                $($number => $text,)*
                _ => c"no code of libcomm",
            }
        }
    };
}

codes! {
    OK = 0, "COMM_OK", c"success";
    INVALID_ARGUMENT = 1, "COMM_ERROR_INVALID_ARGUMENT", c"an argument makes no sense";
    ENVIRONMENT = 2, "COMM_ERROR_ENVIRONMENT", c"a variable of the launcher is missing or makes no sense";
    SEGMENT = 3, "COMM_ERROR_SEGMENT", c"the job's shared memory cannot be had";
    ALREADY_JOINED = 4, "COMM_ERROR_ALREADY_JOINED", c"another program of this rank has joined already";
    PEER = 5, "COMM_ERROR_PEER", c"a peer exited, left or failed";
    ABORTED = 6, "COMM_ERROR_ABORTED", c"the job is being ended";
    TIMEOUT = 7, "COMM_ERROR_TIMEOUT", c"a peer did not come before the deadline";
    MISMATCH = 8, "COMM_ERROR_MISMATCH", c"the ranks called different things";
    CORRUPT = 9, "COMM_ERROR_CORRUPT", c"data changed on its way";
    UNUSABLE = 10, "COMM_ERROR_UNUSABLE", c"an earlier call failed";
    FORKED = 11, "COMM_ERROR_FORKED", c"this process is a fork of the one that joined";
    INTERNAL = 12, "COMM_ERROR_INTERNAL", c"libcomm failed";
    DEVICE = 13, "COMM_ERROR_DEVICE", c"the CUDA driver is missing or a call of it failed";
    NO_MEMORY = 14, "COMM_ERROR_NO_MEMORY", c"a rank's part of the shared memory is full";
    NO_THREAD = 15, "COMM_ERROR_NO_THREAD", c"a thread cannot be started";
}

/// The code of an error.
pub(super) fn code_of(error: &CommError) -> c_int {
    match error {
        CommError::InvalidArgument { .. } => INVALID_ARGUMENT,
        CommError::NoMemory { .. } | CommError::NoRoomFor { .. } => NO_MEMORY,
        CommError::NoThread { .. } => NO_THREAD,
        CommError::MissingVariable { .. } | CommError::Environment { .. } | CommError::OtherGpus { .. } => ENVIRONMENT,
        CommError::Segment(_) | CommError::NoSegment { .. } => SEGMENT,
        CommError::AlreadyJoined { .. } => ALREADY_JOINED,
        CommError::RankExited { .. }
        | CommError::RankVanished { .. }
        | CommError::RankLeft { .. }
        | CommError::PeerFailed { .. } => PEER,
        CommError::Aborted { .. } => ABORTED,
        CommError::Timeout { .. } | CommError::DeviceTimeout { .. } => TIMEOUT,
        CommError::Cuda(_) | CommError::Nccl { .. } => DEVICE,
        CommError::Mismatch { .. }
        | CommError::OtherOrder { .. }
        | CommError::CountsDiffer { .. }
        | CommError::Stale { .. } => MISMATCH,
        CommError::ChunkCorrupt { .. }
        | CommError::ResultsDiffer { .. }
        | CommError::HostDiffers { .. }
        | CommError::ResultWrong { .. } => CORRUPT,
        CommError::Unusable { .. } => UNUSABLE,
        CommError::Forked => FORKED,
        CommError::Internal(_) => INTERNAL,
    }
}
