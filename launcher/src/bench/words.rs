//! The names of calls, types and operations: libcomm's, and those of nccl-tests.

use comm::{DataType, Op};
use programs::bench::collective::Collective;

/// What nccl-tests calls each type.
const TYPES: [(DataType, &str); 14] = [
    (DataType::F64, "double"),
    (DataType::F32, "float"),
    (DataType::F16, "half"),
    (DataType::BF16, "bfloat16"),
    (DataType::I8, "int8"),
    (DataType::U8, "uint8"),
    (DataType::I16, "int16"),
    (DataType::U16, "uint16"),
    (DataType::I32, "int32"),
    (DataType::U32, "uint32"),
    (DataType::I64, "int64"),
    (DataType::U64, "uint64"),
    (DataType::E4M3, "f8e4m3"),
    (DataType::E5M2, "f8e5m2"),
];

/// As nccl-tests prints it.
pub fn type_name(data_type: DataType) -> &'static str {
    TYPES.iter().find(|(known, _)| *known == data_type).map_or("?", |(_, name)| name)
}

/// From either name.
pub fn data_type(text: &str) -> Result<DataType, String> {
    let found = TYPES.iter().find(|(known, name)| *name == text || known.to_string() == text);
    found.map(|(known, _)| *known).ok_or_else(|| {
        let names: Vec<&str> = TYPES.iter().map(|(_, name)| *name).collect();
        format!("there is no type `{text}`; there are {}", names.join(", "))
    })
}

/// From its name.
pub fn op(text: &str) -> Result<Op, String> {
    Op::ALL.into_iter().find(|op| op.to_string() == text).ok_or_else(|| {
        let names: Vec<String> = Op::ALL.iter().map(ToString::to_string).collect();
        format!("there is no operation `{text}`; there are {}", names.join(", "))
    })
}

/// From its name, also with `_perf` behind it, as nccl-tests' programs are called.
pub fn collective(text: &str) -> Result<Collective, String> {
    let plain = |name: &str| name.replace(['_', '-'], "");
    let wanted = plain(text.strip_suffix("_perf").unwrap_or(text));
    Collective::ALL.into_iter().find(|known| plain(known.name()) == wanted).ok_or_else(|| {
        let names: Vec<&str> = Collective::ALL.iter().map(|known| known.name()).collect();
        format!("there is no collective `{text}`; there are {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_names_of_a_type_are_known() {
        for data_type_ in DataType::ALL {
            assert_eq!(data_type(type_name(data_type_)), Ok(data_type_));
            assert_eq!(data_type(&data_type_.to_string()), Ok(data_type_));
        }
        assert!(data_type("int").unwrap_err().contains("int32"));
    }

    #[test]
    fn collectives_are_known_as_others_write_them() {
        for text in ["allreduce", "all_reduce", "all_reduce_perf", "all-reduce"] {
            assert_eq!(collective(text), Ok(Collective::AllReduce));
        }
        assert_eq!(collective("reduce_scatter"), Ok(Collective::ReduceScatter));
        assert!(collective("gossip").unwrap_err().contains("alltoall"));
        assert_eq!(op("band"), Ok(Op::BitAnd));
        assert!(op("xor").is_err());
    }
}
