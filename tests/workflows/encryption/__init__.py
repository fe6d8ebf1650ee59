"""`test_codec` tests `sealing`, too, with the same keys. `settings` is tested by `test_codec` and `test_cipher`."""
