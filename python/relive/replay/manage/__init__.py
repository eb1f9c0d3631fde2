"""Care of recorded runs: validate, recover, archive and delete them."""
