"""One module per operator: the public function, its autograd Function, its fakes."""
