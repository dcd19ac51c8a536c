#!/bin/sh
# Makes the emulated driver: build.sh FOLDER. Programs that find libcuda.so.1 there have GPUs. What is there and newer than its
# sources is kept. A case of `prun selftest` by hand, the words of which are in `programs/src/selftest/mod.rs`:
#
#     tests/emulator/build.sh target/emulator
#     prun -n 2 --map-by none -x LD_LIBRARY_PATH=$PWD/target/emulator prun @selftest-rank pair
set -e
source=$(cd "$(dirname "$0")" && pwd)
kernels=$source/../../kernels
mkdir -p "$1"
folder=$(cd "$1" && pwd)
exec 9>"$folder/lock"
flock 9
cxx=${CXX:-c++}
flags="-std=c++17 -O1 -fPIC -shared -ffp-contract=off"

is_older() { # FILE THAN...
    file=$1
    shift
    [ ! -e "$file" ] || [ -n "$(find "$@" -newer "$file" -type f | head -1)" ]
}

if is_older "$folder/libcuda.so.1" "$source"; then
    # shellcheck disable=SC2086
    $cxx $flags -Wall -Wextra -ftls-model=initial-exec -pthread -Wl,-soname,libcuda.so.1 -o "$folder/libcuda.so.1.new" "$source"/*.cpp -ldl
    mv "$folder/libcuda.so.1.new" "$folder/libcuda.so.1"
fi
one='
    folder=$1 source=$2 kernels=$3 image=$4 file=$5
    shift 5
    "$@" -x c++ -include "$source/cuda.h" -I "$source" -I "$kernels/device" -o "$folder/$image.so.new" "$kernels/device/$file" \
        -x none -L "$folder" -l:libcuda.so.1
    mv "$folder/$image.so.new" "$folder/$image.so"
'
image() { # IMAGE FILE DEFINES...
    cp -u "$kernels/ptx/$1.ptx" "$folder/$1.ptx"
    if is_older "$folder/$1.so" "$source" "$kernels/device"; then
        echo "$@"
    fi
}
{
    image common common.cu
    image probe probe.cu
    image broadcast broadcast.cu
    image broadcast_sm90 broadcast.cu
    image broadcast.checked broadcast.cu -DCHECKED=1
    for type in f64:double f32:float f16:f16 bf16:bf16 i8:i8 u8:u8 i32:i32 u32:u32 i64:i64 u64:u64; do
        name=${type%:*}
        defines="-DELEMENT=${type#*:} -DNAME=$name"
        image "$name" allreduce.cu "$defines"
        image "direct_$name" direct.cu "$defines"
        image "direct_${name}_sm90" direct.cu "$defines"
        image "$name.checked" checked.cu "$defines -DCHECKED=1"
        image "zero_$name" zero.cu "$defines"
    done
} | while read -r name file defines; do
    # shellcheck disable=SC2086
    echo "$folder" "$source" "$kernels" "$name" "$file" $cxx $flags -w $defines
done | xargs -r -P "$(nproc)" -L 1 sh -ec "$one" sh
