"""The roster protocol in virtual time: the real leader, presence, mirror, seat and store table under seeded faults."""
