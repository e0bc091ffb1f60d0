"""What a run leaves behind: its folder, the journal, TensorBoard files; and how a run is repeated from them."""
