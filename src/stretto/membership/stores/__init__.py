"""The store that agents agree through: the interface, the embedded one, the same over TCP, and etcd."""
