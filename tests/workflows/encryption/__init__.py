"""Tests of encryption.

Tested in other modules:

`sealing`: test_codec
`settings`: test_cipher, tests/workflows/test_encryption
"""
