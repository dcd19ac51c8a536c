//! The arithmetic of each element type: what it is added up in, and how it is rounded back.

use crate::types::DataType;

/// A type that libcomm moves and reduces: `f64 f32 f16 bf16 i8 u8 i16 u16 i32 u32 i64 u64` and [`E4M3`], [`E5M2`].
pub trait Element: Arithmetic {
    /// Its name in the C interface.
    const TYPE: DataType;
}

/// An 8-bit float of 4 bits of exponent and 3 of mantissa, without infinity: NaN is all ones, the largest number 448.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct E4M3(pub u8);

/// An 8-bit float of 5 bits of exponent and 2 of mantissa: the upper half of an IEEE half, with its infinities and NaNs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct E5M2(pub u8);

impl E4M3 {
    /// Its value.
    pub fn to_f32(self) -> f32 {
        match self.0 & 0x7f {
            0x7f => f32::NAN,
            _ => small_to_single(self.0, 3, 7),
        }
    }

    /// The nearest, ties to even; what is too large becomes 448 with its sign, infinities too.
    pub fn from_f32(x: f32) -> E4M3 {
        let sign = (x.to_bits() >> 24) as u8 & 0x80;
        E4M3(sign | if x.is_nan() { 0x7f } else { single_to_small(x.abs(), 3, 7).min(0x7e) })
    }
}

impl E5M2 {
    /// Its value.
    pub fn to_f32(self) -> f32 {
        half_to_single(half::f16::from_bits(u16::from(self.0) << 8))
    }

    /// The nearest, ties to even; what is too large becomes 57344 with its sign, infinities stay.
    pub fn from_f32(x: f32) -> E5M2 {
        let sign = (x.to_bits() >> 24) as u8 & 0x80;
        E5M2(
            sign | match x.abs() {
                x if x.is_nan() => 0x7f,
                f32::INFINITY => 0x7c,
                x => single_to_small(x, 2, 15).min(0x7b),
            },
        )
    }
}

fn small_to_single(bits: u8, mantissa_bits: u32, bias: i32) -> f32 {
    let (exponent, mantissa) = (i32::from(bits & 0x7f) >> mantissa_bits, f32::from(bits & ((1 << mantissa_bits) - 1)));
    let one = f32::from(1u8 << mantissa_bits);
    let magnitude = match exponent {
        0 => mantissa / one * 2f32.powi(1 - bias),
        _ => (1.0 + mantissa / one) * 2f32.powi(exponent - bias),
    };
    if bits & 0x80 != 0 { -magnitude } else { magnitude }
}

/// Exponent and mantissa of the nearest one, which may be past the largest. `x` is not negative and no NaN.
fn single_to_small(x: f32, mantissa_bits: u32, bias: i32) -> u8 {
    let exponent = ((x.to_bits() >> 23) as i32 - 127).max(1 - bias);
    let unit = 2f32.powi(exponent - mantissa_bits as i32); // one step of the mantissa: a power of two, so this is exact
    let steps = (x / unit).round_ties_even().min(1e6) as u32;
    let above = (exponent - (1 - bias)) as u32; // a carry out of the mantissa moves on into the exponent
    ((above << mantissa_bits) + steps).min(0x7f) as u8
}

/// How the reductions see an element. Not for use outside of libcomm.
#[doc(hidden)]
pub trait Arithmetic: Copy + Send + Sync + 'static {
    /// What sums, products and extremes are kept in.
    type Acc: Copy + Default;
    /// What means are summed in.
    type Wide: Copy + Default;
    /// What has the same sums, products and bits: of signed integers, the unsigned ones, so that the loops for these are
    /// compiled once.
    type Bits: Arithmetic;
    /// Whether `Bits` is another type.
    const IS_SIGNED: bool;
    /// Whether bits and truth are reduced.
    const HAS_BITS: bool;

    fn widen(self) -> Self::Acc;
    fn narrow(acc: Self::Acc) -> Self;
    fn sum(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    fn prod(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    fn min(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    fn max(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    fn wide(self) -> Self::Wide;
    fn wide_sum(a: Self::Wide, b: Self::Wide) -> Self::Wide;
    fn mean(sum: Self::Wide, ranks: u32) -> Self;

    // Of integers only; floats keep the first, and never come here.
    fn bit_and(a: Self, _: Self) -> Self {
        a
    }
    fn bit_or(a: Self, _: Self) -> Self {
        a
    }
    fn bit_xor(a: Self, _: Self) -> Self {
        a
    }
    fn all(a: Self, _: Self) -> Self {
        a
    }
    fn any(a: Self, _: Self) -> Self {
        a
    }
    /// 1 for anything but 0.
    fn truth(self) -> Self {
        self
    }
}

macro_rules! integers {
    ($($type:ty, $bits:ty, $wide:ty, $name:ident;)*) => {$(
        impl Element for $type {
            const TYPE: DataType = DataType::$name;
        }
        impl Arithmetic for $type {
            type Acc = $type;
            type Wide = $wide; // holds the sum of any 2^32 of them
            type Bits = $bits;
            const IS_SIGNED: bool = <$type>::MIN != 0;
            const HAS_BITS: bool = true;
            #[inline(always)]
            fn widen(self) -> $type { self }
            #[inline(always)]
            fn narrow(acc: $type) -> $type { acc }
            #[inline(always)]
            fn sum(a: $type, b: $type) -> $type { a.wrapping_add(b) }
            #[inline(always)]
            fn prod(a: $type, b: $type) -> $type { a.wrapping_mul(b) }
            #[inline(always)]
            fn min(a: $type, b: $type) -> $type { a.min(b) }
            #[inline(always)]
            fn max(a: $type, b: $type) -> $type { a.max(b) }
            #[inline(always)]
            fn wide(self) -> $wide { self.into() }
            #[inline(always)]
            fn wide_sum(a: $wide, b: $wide) -> $wide { a + b }
            #[inline(always)]
            fn mean(sum: $wide, ranks: u32) -> $type { (sum / <$wide>::from(ranks)) as $type }
            #[inline(always)]
            fn bit_and(a: $type, b: $type) -> $type { a & b }
            #[inline(always)]
            fn bit_or(a: $type, b: $type) -> $type { a | b }
            #[inline(always)]
            fn bit_xor(a: $type, b: $type) -> $type { a ^ b }
            #[inline(always)]
            fn all(a: $type, b: $type) -> $type { (a != 0 && b != 0).into() }
            #[inline(always)]
            fn any(a: $type, b: $type) -> $type { (a != 0 || b != 0).into() }
            #[inline(always)]
            fn truth(self) -> $type { (self != 0).into() }
        }
    )*};
}

integers! {
    i8, u8, i64, I8;
    u8, u8, u64, U8;
    i16, u16, i64, I16;
    u16, u16, u64, U16;
    i32, u32, i64, I32;
    u32, u32, u64, U32;
    i64, u64, i128, I64;
    u64, u64, u128, U64;
}

macro_rules! floats {
    ($($type:ty, $acc:ty, $name:ident, $widen:expr, $narrow:expr;)*) => {$(
        impl Element for $type {
            const TYPE: DataType = DataType::$name;
        }
        impl Arithmetic for $type {
            type Acc = $acc;
            type Wide = $acc;
            type Bits = $type;
            const IS_SIGNED: bool = false;
            const HAS_BITS: bool = false;
            #[inline(always)]
            fn widen(self) -> $acc { $widen(self) }
            #[inline(always)]
            fn narrow(acc: $acc) -> $type { $narrow(acc) }
            #[inline(always)]
            fn sum(a: $acc, b: $acc) -> $acc { a + b }
            #[inline(always)]
            fn prod(a: $acc, b: $acc) -> $acc { a * b }
            // A NaN on either side stays: on the right because the comparison is false.
            #[inline(always)]
            fn min(a: $acc, b: $acc) -> $acc { if a < b || a.is_nan() { a } else { b } }
            #[inline(always)]
            fn max(a: $acc, b: $acc) -> $acc { if a > b || a.is_nan() { a } else { b } }
            #[inline(always)]
            fn wide(self) -> $acc { $widen(self) }
            #[inline(always)]
            fn wide_sum(a: $acc, b: $acc) -> $acc { a + b }
            #[inline(always)]
            fn mean(sum: $acc, ranks: u32) -> $type { $narrow(sum / ranks as $acc) }
        }
    )*};
}

floats! {
    f64, f64, F64, std::convert::identity, std::convert::identity;
    f32, f32, F32, std::convert::identity, std::convert::identity;
    half::f16, f32, F16, half_to_single, single_to_half;
    half::bf16, f32, BF16, brain_to_single, single_to_brain;
    E4M3, f32, E4M3, E4M3::to_f32, E4M3::from_f32;
    E5M2, f32, E5M2, E5M2::to_f32, E5M2::from_f32;
}

// Conversions without branches or calls, which the compiler can make wide code of.

#[inline(always)]
fn half_to_single(x: half::f16) -> f32 {
    let bits = u32::from(x.to_bits());
    let (sign, rest) = ((bits & 0x8000) << 16, (bits & 0x7fff) << 13);
    // Moves the exponent from a bias of 15 to one of 127, and makes subnormal numbers normal on the way.
    let scaled = (f32::from_bits(rest) * f32::from_bits((127 + 112) << 23)).to_bits();
    let special = rest | 0xff << 23;
    f32::from_bits(sign | if rest >= 0x1f << 23 { special } else { scaled })
}

#[inline(always)]
fn single_to_half(x: f32) -> half::f16 {
    let bits = x.to_bits();
    let (sign, rest) = ((bits >> 16) as u16 & 0x8000, bits & 0x7fff_ffff);
    // To the nearest, ties to even. Below the normal numbers an addition makes the rounding.
    let odd = rest >> 13 & 1;
    let normal = rest.wrapping_add(0xfff + odd).wrapping_sub(112 << 23) >> 13;
    let magic = f32::from_bits((127 - 15 + 23 - 10 + 1) << 23);
    let subnormal = (f32::from_bits(rest) + magic).to_bits().wrapping_sub(magic.to_bits());
    let special = if rest > 0xff << 23 { 0x7e00 | (rest >> 13 & 0x3ff) } else { 0x7c00 };
    let small = if rest < 113 << 23 { subnormal } else { normal };
    let magnitude = if rest >= (127 + 16) << 23 { special } else { small };
    half::f16::from_bits(sign | magnitude as u16)
}

#[inline(always)]
fn brain_to_single(x: half::bf16) -> f32 {
    f32::from_bits(u32::from(x.to_bits()) << 16)
}

#[inline(always)]
fn single_to_brain(x: f32) -> half::bf16 {
    let bits = x.to_bits();
    let odd = bits >> 16 & 1;
    let rounded = bits.wrapping_add(0x7fff + odd) >> 16;
    let nan = bits >> 16 | 0x40;
    half::bf16::from_bits(if bits & 0x7fff_ffff > 0xff << 23 { nan } else { rounded } as u16)
}

/// Runs `$body` with `$type` standing for the Rust type of a [`DataType`].
macro_rules! with_type {
    ($data_type:expr, $type:ident => $body:expr) => {
        match $data_type {
            $crate::DataType::F64 => {
                type $type = f64;
                $body
            }
            $crate::DataType::F32 => {
                type $type = f32;
                $body
            }
            $crate::DataType::F16 => {
                type $type = half::f16;
                $body
            }
            $crate::DataType::BF16 => {
                type $type = half::bf16;
                $body
            }
            $crate::DataType::I8 => {
                type $type = i8;
                $body
            }
            $crate::DataType::U8 => {
                type $type = u8;
                $body
            }
            $crate::DataType::I32 => {
                type $type = i32;
                $body
            }
            $crate::DataType::U32 => {
                type $type = u32;
                $body
            }
            $crate::DataType::I64 => {
                type $type = i64;
                $body
            }
            $crate::DataType::U64 => {
                type $type = u64;
                $body
            }
            $crate::DataType::I16 => {
                type $type = i16;
                $body
            }
            $crate::DataType::U16 => {
                type $type = u16;
                $body
            }
            $crate::DataType::E4M3 => {
                type $type = $crate::E4M3;
                $body
            }
            $crate::DataType::E5M2 => {
                type $type = $crate::E5M2;
                $body
            }
        }
    };
}
pub(crate) use with_type;

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    #[test]
    fn every_16_bit_float_becomes_what_it_is_and_comes_back() {
        for bits in 0..=u16::MAX {
            let (half, brain) = (f16::from_bits(bits), bf16::from_bits(bits));
            let (a, b) = (half_to_single(half), brain_to_single(brain));
            assert!(a == half.to_f32_const() || a.is_nan() && half.is_nan(), "{bits:#x}");
            assert!(b == brain.to_f32_const() || b.is_nan() && brain.is_nan(), "{bits:#x}");
            assert!(single_to_half(a).to_bits() == bits || half.is_nan() && single_to_half(a).is_nan());
            assert!(single_to_brain(b).to_bits() == bits || brain.is_nan() && single_to_brain(b).is_nan());
        }
    }

    #[test]
    fn every_8_bit_float_comes_back_and_the_nearest_is_taken() {
        for bits in 0..=u8::MAX {
            let (a, b) = (E4M3(bits), E5M2(bits));
            assert!(E4M3::from_f32(a.to_f32()) == a || a.to_f32().is_nan(), "{bits:#x}");
            assert!(E5M2::from_f32(b.to_f32()) == b || b.to_f32().is_nan(), "{bits:#x}");
        }
        let nearest = |x: f32, value: &dyn Fn(u8) -> f32| {
            let all = (0..0x80u8).filter(|bits| value(*bits).is_finite());
            // Of two that are as near, the even one.
            all.min_by(|a, b| {
                let far = |bits: &u8| (f64::from(value(*bits)) - f64::from(x)).abs();
                far(a).total_cmp(&far(b)).then((a % 2).cmp(&(b % 2)))
            })
        };
        for i in 0..40_000 {
            let x = i as f32 / 64.0;
            assert_eq!(Some(E4M3::from_f32(x).0), nearest(x, &|bits| E4M3(bits).to_f32()), "{x}");
            let x = x * 0.001;
            assert_eq!(Some(E5M2::from_f32(x).0), nearest(x, &|bits| E5M2(bits).to_f32()), "{x}");
        }
        assert_eq!(E4M3::from_f32(-1e9).to_f32(), -448.0);
        assert_eq!(E5M2::from_f32(6e4).to_f32(), 57344.0);
        assert_eq!(E5M2::from_f32(f32::NEG_INFINITY).to_f32(), f32::NEG_INFINITY);
    }

    #[test]
    fn rounding_is_to_the_nearest_and_to_even() {
        let mut bits = 1u32;
        for _ in 0..2_000_000 {
            bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // Many near the middle between two 16-bit floats.
            for x in [bits, bits & 0xffff_e000 | 0x1000, bits & 0xffff_0000 | 0x8000].map(f32::from_bits) {
                let (half, brain) = (f16::from_f32_const(x), bf16::from_f32_const(x));
                assert!(
                    single_to_half(x).to_bits() == half.to_bits() || x.is_nan() && single_to_half(x).is_nan(),
                    "{x:e}"
                );
                assert!(single_to_brain(x).to_bits() == brain.to_bits() || x.is_nan(), "{x:e}");
            }
        }
    }
}
