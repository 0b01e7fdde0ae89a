"""Evidence against a member or a coordinator that broke the protocol, and how members check it."""
