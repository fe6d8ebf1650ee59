"""`test_codec` tests `sealing`, too, with the same keys. `settings` has its tests in both."""
