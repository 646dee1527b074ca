"""The lock and its recovery beside the tools that projects use: both work, one file a tool."""
