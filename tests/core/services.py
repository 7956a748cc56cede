"""What services say, and what only looks like it."""

from __future__ import annotations

from datetime import UTC, datetime

NOW = datetime(2026, 11, 16, 11, 30, tzinfo=UTC)


# What is said, what that is, and how many seconds it asks for.
SAID = [
    ("API rate limit exceeded", "rate limit", None),
    ("Error: 429 Too Many Requests\nRetry-After: 30", "rate limit", 30),
    ("status code: 429", "rate limit", None),
    ("HTTP/1.1 429", "rate limit", None),
    ("rate limited; retry after 2 minutes", "rate limit", 120),
    ("anthropic.RateLimitError: slow", "rate limit", None),
    ("botocore: ThrottlingException", "rate limit", None),
    ("Rate limit reached for m on tokens per min (TPM): Limit 10000. Please try again in 6.5s.", "rate limit", 6.5),
    ("Quota exceeded for quota metric 'Read requests per minute'", "rate limit", None),
    ("rateLimitExceeded, please retry in 350ms", "rate limit", 0.35),
    ("too many requests, wait 2 minutes and 5 seconds", "rate limit", 125),
    ("rate limit exceeded; x-ratelimit-reset: 1794830400", "rate limit", 1794830400 - NOW.timestamp()),
    ('{"error": {"code": 429, "status": "x"}, "details": [{"retryDelay": "34s"}]}', "rate limit", 34),
    ("overloaded_error: Overloaded", "overloaded", None),
    ("HTTP 529", "overloaded", None),
    ("the model is currently overloaded, retry-after-ms: 1500", "overloaded", 1.5),
    ("usage limit reached|1794830400", "quota", 1794830400 - NOW.timestamp()),
    ("You've hit your limit · resets 3pm (Europe/London)", "quota", 3.5 * 3600),
    ("You've hit your usage limit. Try again at 3:51 PM.", "quota", 4 * 3600 + 21 * 60),
    ("5-hour limit reached ∙ resets 2am", "quota", 14.5 * 3600),
    ("Weekly limit reached ∙ resets Nov 20, 9am (UTC)", "quota", 3 * 86400 + 21.5 * 3600),
    ("usage limit reached. Try again in 4 days 22 hours 5 minutes.", "quota", 4 * 86400 + 22 * 3600 + 300),
    ("quota exceeded, resets at 2026-11-16T15:00:00Z", "quota", 3.5 * 3600),
    ("Your quota will reset after 13h46m9s. Quota exceeded.", "quota", 13 * 3600 + 46 * 60 + 9),
    ("RESOURCE_EXHAUSTED", "quota", None),
    ("You exceeded your current quota, please check your plan", "quota", None),
    ("too many requests\nRetry-After: Mon, 16 Nov 2026 12:00:00 GMT", "rate limit", 1800),
    ("usage limit reached|1700000000", "quota", None),  # a time that is over tells nothing
    ("usage limit reached; resets 3pm (Foo/Bar)", "quota", 3.5 * 3600),
    ("quota exceeded, resets Feb 31, 9am", "quota", None),
    ("Request failed with status code 429", "rate limit", None),
    ("HTTP 429 Too Many Requests: clients should retry after 30s", "rate limit", 30),
    ("429 Too Many Requests. Retry after 1 day", "rate limit", 86400),
    ("Too many requests. Retry after 1 hour 30 minutes", "rate limit", 5400),
    ("Too many requests. retry-after 2 hours and 30 minutes.", "rate limit", 9000),
    ("Too many requests. Retry after 30.", "rate limit", 30),
    ("Too many requests (retry-after: 30, please)", "rate limit", 30),
    ("upload failed after 00:12:31: HTTP 429 Too Many Requests", "rate limit", None),
    ("Too many requests, try again in 90 000 ms", "rate limit", None),
    ("Too many requests, try again in 5:00 minutes", "rate limit", None),
    ("HTTP 429\nRetry-After: 16 Nov 2026 12:00:00 GMT", "rate limit", 1800),
    ("HTTP 429. Will retry in 1 seconds. Server: try again in 45 minutes", "rate limit", 2700),
    ("usage limit reached, available after 3pm", "quota", 3.5 * 3600),
    ("HTTP 429 Retry-After: 30 Content-Length: 0", "rate limit", 30),
    ("usage limit reached, resets at 3pm I think", "quota", 3.5 * 3600),
    ("Too many requests. Retry after 5 attempts", "rate limit", None),  # no time
    ("Too many requests. Retry after 2 weeks", "rate limit", None),  # not two seconds
    ("Too many requests. retry in 1,200 seconds", "rate limit", 1200),
    ("Too many requests. try again in 00:05:00", "rate limit", 300),
    ("HTTP 429\nx-ratelimit-reset-requests: 6m0s", "rate limit", 360),
    ("HTTP 429\nRateLimit-Reset: 12", "rate limit", 12),
    ("rate limit exceeded, resets at 1794830400", "rate limit", 1794830400 - NOW.timestamp()),
    ("rate limit exceeded, available again at 1794830400", "rate limit", 1794830400 - NOW.timestamp()),
    ("HTTP 429\nRetry-After: 1794830400", "rate limit", None),
    ("usage limit reached, resets at 11:30:30 UTC", "quota", 30),
    ("usage limit reached, resets at 11:30am", "quota", 0),
    ("usage limit reached, resets at 11:25am", "quota", 0),  # by a clock that is a little behind
    ("usage limit reached, resets at 11:15am", "quota", 23.75 * 3600),
    ("usage limit reached, resets at 6am PST", "quota", 2.5 * 3600),
    ("usage limit reached, resets at 6am PT", "quota", 2.5 * 3600),
    ("usage limit reached, resets at 15:00+02:00", "quota", 1.5 * 3600),
    ("usage limit reached, resets at 3pm XYZ", "quota", None),  # wherever that is
    ("usage limit reached, resets tomorrow at 9am", "quota", 21.5 * 3600),
    ("usage limit reached, resets Friday at 3pm", "quota", 4 * 86400 + 3.5 * 3600),
    ("usage limit reached, resets Monday, 9am", "quota", 6 * 86400 + 21.5 * 3600),
    ("usage limit reached, try again on 16 Nov 2026 15:00 UTC", "quota", 3.5 * 3600),
    ("too many requests\nRetry-After: Monday, 16-Nov-26 12:00:00 GMT", "rate limit", 1800),
    ("Server returned 429", "rate limit", None),
    ("Request rejected (429)", "rate limit", None),
    ("An error occurred (RequestLimitExceeded)", "rate limit", None),
    ("ProvisionedThroughputExceededException", "rate limit", None),
    ("Rate exceeded", "rate limit", None),
    ("You have exceeded a secondary rate limit", "rate limit", None),
    ("You've hit your ChatGPT usage limit", "quota", None),
]


NOT_SAID = [
    "FAILED tests/test_api.py::test_429 - assert 200 == 429",
    "tests/test_rate_limit.py .... 3 failed",
    "connection refused",
    "exited with code 1",
    "limit: 10 items",
    "line 529: syntax error",
    "AssertionError: expected status 429, got 200",
    "generated 812 tokens per second",
    "100 requests per second",
    "OSError: [Errno 122] Disk quota exceeded",
    "ResourceExhaustedError: out of memory",
    "resource exhausted: out of memory",
    "CPU throttled",
    "you have reached your file size limit",
    "the mill rejected 4291 parts",
]
