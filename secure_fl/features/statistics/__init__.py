"""Statistics by codebook: fixed tables over hospitals' records, opened once as one sealed sum."""
