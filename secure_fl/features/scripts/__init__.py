"""Scripts: a program of the site's own, whose named sums are sealed like those of an algorithm."""
