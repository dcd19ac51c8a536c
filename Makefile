# Thin over cargo: every target is one or a few commands that also work by hand.

CARGO ?= cargo
TARGET = $(or $(CARGO_TARGET_DIR),target)
RELEASE = $(TARGET)/release

.PHONY: ptx ptx-check demo build test lint unit loom e2e bench soak simulate fuzz packages install clean

# The main job: four processes train one network, gradients averaged through shared memory.
demo:
	$(CARGO) build --release -p launcher -p examples --bin prun --bin train
	$(RELEASE)/prun -n 4 $(RELEASE)/train

build:
	$(CARGO) build --release --workspace

# Everything that must hold before a change lands. Installs what it needs by name.
test: packages lint ptx-check unit loom e2e

packages:
	tests/packages.sh

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps

# The kernels as they are shipped, made anew; `ptx-check` proves them fresh and assembles them.
ptx:
	tests/ptx.sh --write

ptx-check:
	tests/ptx.sh

unit:
	$(CARGO) test --workspace --exclude tests

loom:
	RUSTFLAGS="--cfg loom" $(CARGO) test -p libcomm --release --lib --target-dir $(TARGET)/loom loom

e2e:
	$(CARGO) build --workspace
	$(CARGO) test -p tests

# Figures, with the peers in the same run. Nothing here is a test.
bench: build
	python3 tests/peers/launch.py
	python3 tests/peers/output.py
	python3 tests/peers/behaviour.py
	python3 tests/peers/collectives.py

# Long runs: chaos, a thousand jobs in a row, a thousand flipped bits.
soak: build
	$(CARGO) test -p tests --release -- --ignored --nocapture
	$(CARGO) test -p libcomm --release --test soak -- --ignored --nocapture

# prun, and libcomm for programs that link it: make install PREFIX=$$HOME/.local
PREFIX ?= /usr/local
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
DESTROOT = $(DESTDIR)$(PREFIX)

install: build
	install -d $(DESTROOT)/bin $(DESTROOT)/include $(DESTROOT)/lib/pkgconfig $(DESTROOT)/share/man/man1
	install -m 755 $(RELEASE)/prun $(DESTROOT)/bin/
	install -m 644 libcomm/include/libcomm.h $(DESTROOT)/include/
	install -m 755 $(RELEASE)/libcomm.so $(DESTROOT)/lib/libcomm.so.0
	ln -sf libcomm.so.0 $(DESTROOT)/lib/libcomm.so
	install -m 644 $(RELEASE)/libcomm.a $(DESTROOT)/lib/
	sed -e "s|@prefix@|$(PREFIX)|; s|@libdir@|$(PREFIX)/lib|; s|@includedir@|$(PREFIX)/include|; s|@version@|$(VERSION)|" libcomm/libcomm.pc.in > $(DESTROOT)/lib/pkgconfig/libcomm.pc
	$(RELEASE)/prun man > $(DESTROOT)/share/man/man1/prun.1

# What the statistics of `prun sweep` promise, on figures whose truth is known: coverage, differences found, A/A.
simulate:
	$(CARGO) test -p launcher --release --lib -- --ignored --nocapture experiment::stats

# Random text for each parser, ten minutes each.
fuzz:
	tests/fuzz.sh

clean:
	$(CARGO) clean
