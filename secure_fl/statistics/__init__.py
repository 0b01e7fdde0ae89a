"""Questions about the hospitals' records, answered by sealed sums, under each site's own rules."""
