"""One module per operator: the public function, its fakes, its autograd Function."""
