//! `PRUN_VERIFY=full`: whether a GPU's result is what the host makes of the same data. Pure.

use half::{bf16, f16};

use crate::types::DataType;

/// The first element in which the results differ, with both values. `magnitude`, where there is one, is the reduction
/// of the absolute values: a ring of three ranks and more adds in another order than the host and rounds at each hop, so
/// that results may be so far apart as that many roundings of it.
pub(crate) fn first_difference(
    data_type: DataType,
    device: &[u8],
    host: &[u8],
    magnitude: Option<&[u8]>,
    ranks: u32,
) -> Option<(u64, String, String)> {
    let width = data_type.bytes();
    let element = |bytes: &[u8], i: usize| bytes[i * width..(i + 1) * width].to_vec();
    let differs = |i: &usize| {
        let (a, b) = (element(device, *i), element(host, *i));
        if a == b {
            return false;
        }
        let (Some(a), Some(b)) = (real(data_type, &a), real(data_type, &b)) else { return true };
        // Processors have NaNs of their own.
        if a.is_nan() && b.is_nan() {
            return false;
        }
        let near = magnitude.and_then(|bytes| real(data_type, &element(bytes, *i)));
        near.is_none_or(|near| (a - b).abs() > near * 2.0 * f64::from(ranks) * epsilon(data_type))
    };
    let first = (0..device.len() / width).find(differs)?;
    let text = |bytes: &[u8]| {
        let bytes = element(bytes, first);
        real(data_type, &bytes).map_or_else(|| hexadecimal(&bytes), |value| format!("{value:e}"))
    };
    Some((first as u64, text(device), text(host)))
}

/// Clears the sign of each element of a float type.
pub(crate) fn clear_signs(data_type: DataType, data: &mut [u8]) {
    data.chunks_exact_mut(data_type.bytes()).for_each(|element| element[data_type.bytes() - 1] &= 0x7f);
}

fn real(data_type: DataType, bytes: &[u8]) -> Option<f64> {
    match data_type {
        DataType::F64 => Some(f64::from_le_bytes(bytes.try_into().ok()?)),
        DataType::F32 => Some(f64::from(f32::from_le_bytes(bytes.try_into().ok()?))),
        DataType::F16 => Some(f16::from_le_bytes(bytes.try_into().ok()?).to_f64()),
        DataType::BF16 => Some(bf16::from_le_bytes(bytes.try_into().ok()?).to_f64()),
        _ => None,
    }
}

fn epsilon(data_type: DataType) -> f64 {
    match data_type {
        DataType::F64 => f64::EPSILON,
        DataType::F32 => f64::from(f32::EPSILON),
        DataType::F16 => f16::EPSILON.to_f64(),
        _ => bf16::EPSILON.to_f64(),
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().rev().fold("0x".to_owned(), |text, byte| format!("{text}{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floats(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    #[test]
    fn one_wrong_bit_is_found_and_nans_of_two_kinds_are_the_same() {
        let host = floats(&[1.0, f32::NAN, -0.0, 4.0]);
        assert_eq!(first_difference(DataType::F32, &host, &host, None, 2), None);
        let mut device = floats(&[1.0, -f32::NAN, -0.0, 4.0]);
        assert_eq!(first_difference(DataType::F32, &device, &host, None, 2), None);
        device[12] ^= 1;
        assert_eq!(first_difference(DataType::F32, &device, &host, None, 2).unwrap().0, 3);
        let found = first_difference(DataType::I8, &[1, 2, 3], &[1, 2, 0x7f], None, 2);
        assert_eq!(found, Some((2, "0x03".into(), "0x7f".into())));
    }

    #[test]
    fn a_ring_may_round_otherwise_but_not_by_more() {
        let (host, device) = (floats(&[0.0]), floats(&[1e-6]));
        let mut data = floats(&[-3.0]);
        clear_signs(DataType::F32, &mut data);
        assert_eq!(data, floats(&[3.0]));
        assert_eq!(first_difference(DataType::F32, &device, &host, Some(&data), 3), None);
        assert!(first_difference(DataType::F32, &device, &host, None, 3).is_some());
        assert!(first_difference(DataType::F32, &floats(&[1e-5]), &host, Some(&data), 3).is_some());
    }
}
