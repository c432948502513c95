//! The conformance suite on every kind of node.

mod memory {
    leasehold_testkit::conformance!(leasehold_testkit::Memory::new());
}

mod local {
    leasehold_testkit::conformance!(leasehold_testkit::Local::new());
}

mod redis_one {
    leasehold_testkit::conformance!(leasehold_testkit::Redis::start(1));
}

mod redis_three {
    leasehold_testkit::conformance!(leasehold_testkit::Redis::start(3));
}

mod redis_five {
    leasehold_testkit::conformance!(leasehold_testkit::Redis::start(5));
}
