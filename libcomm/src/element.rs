//! The arithmetic of each element type: what it is added up in, and how it is rounded back.

use crate::types::DataType;

/// A type that libcomm moves and reduces: `f64 f32 f16 bf16 i8 u8 i32 u32 i64 u64`.
pub trait Element: Arithmetic {
    /// Its name in the C interface.
    const TYPE: DataType;
}

/// How the reductions see an element. Not for use outside of libcomm.
#[doc(hidden)]
pub trait Arithmetic: Copy + Send + Sync + 'static {
    /// What sums, products and extremes are kept in.
    type Acc: Copy + Default;
    /// What means are summed in.
    type Wide: Copy + Default;

    fn widen(self) -> Self::Acc;
    fn narrow(acc: Self::Acc) -> Self;
    fn sum(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    fn prod(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    fn min(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    fn max(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    fn wide(self) -> Self::Wide;
    fn wide_sum(a: Self::Wide, b: Self::Wide) -> Self::Wide;
    fn mean(sum: Self::Wide, ranks: u32) -> Self;
}

macro_rules! integers {
    ($($type:ty, $wide:ty, $name:ident;)*) => {$(
        impl Element for $type {
            const TYPE: DataType = DataType::$name;
        }
        impl Arithmetic for $type {
            type Acc = $type;
            type Wide = $wide; // holds the sum of any 2^32 of them
            fn widen(self) -> $type { self }
            fn narrow(acc: $type) -> $type { acc }
            fn sum(a: $type, b: $type) -> $type { a.wrapping_add(b) }
            fn prod(a: $type, b: $type) -> $type { a.wrapping_mul(b) }
            fn min(a: $type, b: $type) -> $type { a.min(b) }
            fn max(a: $type, b: $type) -> $type { a.max(b) }
            fn wide(self) -> $wide { self.into() }
            fn wide_sum(a: $wide, b: $wide) -> $wide { a + b }
            fn mean(sum: $wide, ranks: u32) -> $type { (sum / <$wide>::from(ranks)) as $type }
        }
    )*};
}

integers! {
    i8, i64, I8;
    u8, u64, U8;
    i32, i64, I32;
    u32, u64, U32;
    i64, i128, I64;
    u64, u128, U64;
}

macro_rules! floats {
    ($($type:ty, $acc:ty, $name:ident, $widen:expr, $narrow:expr;)*) => {$(
        impl Element for $type {
            const TYPE: DataType = DataType::$name;
        }
        impl Arithmetic for $type {
            type Acc = $acc;
            type Wide = $acc;
            fn widen(self) -> $acc { $widen(self) }
            fn narrow(acc: $acc) -> $type { $narrow(acc) }
            fn sum(a: $acc, b: $acc) -> $acc { a + b }
            fn prod(a: $acc, b: $acc) -> $acc { a * b }
            // A NaN on either side stays: on the right because the comparison is false.
            fn min(a: $acc, b: $acc) -> $acc { if a < b || a.is_nan() { a } else { b } }
            fn max(a: $acc, b: $acc) -> $acc { if a > b || a.is_nan() { a } else { b } }
            fn wide(self) -> $acc { $widen(self) }
            fn wide_sum(a: $acc, b: $acc) -> $acc { a + b }
            fn mean(sum: $acc, ranks: u32) -> $type { $narrow(sum / ranks as $acc) }
        }
    )*};
}

floats! {
    f64, f64, F64, std::convert::identity, std::convert::identity;
    f32, f32, F32, std::convert::identity, std::convert::identity;
    half::f16, f32, F16, half::f16::to_f32, half::f16::from_f32;
    half::bf16, f32, BF16, half::bf16::to_f32, half::bf16::from_f32;
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
        }
    };
}
pub(crate) use with_type;
