"""What clients see: routes, shapes of answers, streams, security, the page's files."""
