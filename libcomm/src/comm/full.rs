//! `PRUN_VERIFY=full`: a GPU's AllReduce, done again on the host and compared. Waits for the stream; calls that are
//! captured in a graph run without the host, and are not compared with it.
#![expect(unsafe_code, reason = "copies between memories")]

use super::Comm;
use super::check::Call;
use crate::choose::Algorithm;
use crate::cuda::{self, Context, StreamRef};
use crate::device::full::{clear_signs, first_difference};
use crate::device::plan::{Path, Plan};
use crate::device::{Device, DeviceCall};
use crate::error::CommError;
use crate::types::{Op, Operation};
use crate::verify::Verify;

/// Bytes of a buffer on the host, aligned for every element.
pub(super) struct HostCopy {
    words: Vec<u64>,
    bytes: usize,
}

impl Comm {
    /// What this rank sends, where the host is to reduce it, too.
    pub(super) fn copy_for_host(&self, device: &Device, call: &DeviceCall) -> Result<Option<HostCopy>, CommError> {
        let (context, stream) = (device.context(), call.stream);
        if self.core.job.settings.verify != Verify::Full || stream.is_capturing(context.driver())? {
            return Ok(None);
        }
        HostCopy::of(context, call.send, call.bytes(), stream).map(Some)
    }

    /// Waits for the call and does it again on the host, with what this rank sent.
    pub(super) fn compare_with_host(
        &self,
        device: &Device,
        call: &DeviceCall,
        plan: &Plan,
        mut host: HostCopy,
    ) -> Result<(), CommError> {
        let DeviceCall { data_type, op, .. } = *call;
        let count = call.count as usize;
        let record = Call { data_type: Some(data_type), op: Some(op), count, ..Call::plain(Operation::AllReduce) };
        let found = HostCopy::of(device.context(), call.recv, call.bytes(), call.stream)?;
        if let Some(error) = device.trouble(self.core.job.view(), self.rank()) {
            return self.call(record, |_| Err(error));
        }
        let reduce = |copy: &mut HostCopy| {
            let address = copy.words.as_mut_ptr().cast();
            // SAFETY: a buffer of ours with that many elements, aligned for all types.
            unsafe { self.all_reduce_host(address, address, count, data_type, op) }
        };
        let may_round = self.size() > 2 && !data_type.is_integer() && !matches!(op, Op::Min | Op::Max);
        let by_ring = plan.path == Path::Ring || self.core.job.settings.algorithm == Some(Algorithm::Ring);
        let mut magnitude = None;
        if may_round && by_ring {
            let mut copy = HostCopy { words: host.words.clone(), bytes: host.bytes };
            clear_signs(data_type, copy.bytes_mut());
            reduce(&mut copy)?;
            magnitude = Some(copy);
        }
        reduce(&mut host)?;
        let magnitude = magnitude.as_ref().map(HostCopy::bytes);
        match first_difference(data_type, found.bytes(), host.bytes(), magnitude, self.size()) {
            None => Ok(()),
            Some((element, device, host)) => self
                .call(record, |steps| Err(CommError::HostDiffers { call: steps.signature(), element, device, host })),
        }
    }
}

impl HostCopy {
    /// Of memory that the device reaches, once the stream is through.
    fn of(context: Context, from: u64, bytes: usize, stream: StreamRef) -> Result<HostCopy, CommError> {
        let mut words = vec![0u64; bytes.div_ceil(8)];
        let _bound = context.bind()?;
        // Copies to plain memory that wait for the stream keep those of other ranks of this process from being made.
        stream.synchronize(context.driver())?;
        // SAFETY: the copy is that long, and waited for before anyone looks at it.
        unsafe { cuda::memory::copy_async(context, words.as_mut_ptr() as u64, from, bytes, stream)? };
        stream.synchronize(context.driver())?;
        Ok(HostCopy { words, bytes })
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: any bytes are bytes, and there are no fewer.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast(), self.bytes) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and any eight bytes are a word.
        unsafe { std::slice::from_raw_parts_mut(self.words.as_mut_ptr().cast(), self.bytes) }
    }
}
