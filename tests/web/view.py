"""A page in the browser, and its readers."""
WIDTHS = {360: 740, 820: 1180, 1440: 900}  # a phone, a tablet, a desk
SOON_MS = 1000   # deadline of a change in the page
LIMIT_MS = 15_000  # deadline of anything else
# In the page: the text of a GPU's badge; the text under a chart.
BADGE = "(w) => document.querySelectorAll('.card')[w[0]].querySelector('.badge').textContent === w[1]"
WORDS = "(w) => document.querySelectorAll('.card')[w[0]].querySelector(`[data-series=${w[1]}] figcaption`).textContent.includes(w[2])"


class View:
    """A page and its errors."""

    def __init__(self, browser, url, width=1440, **options):
        self.context = browser.new_context(viewport={"width": width, "height": WIDTHS.get(width, 900)}, **options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(LIMIT_MS)
        self.wrong, self.url = [], url
        self.page.on("console", lambda message: message.type in ("error", "warning") and self.wrong.append(message.text))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("request", lambda request: request.url.startswith(url) or self.wrong.append(f"asks for {request.url}"))

    def open(self):
        self.page.goto(self.url)
        self.page.wait_for_selector(".card")
        return self

    def card(self, index):
        return self.page.locator(".card").nth(index)

    def waits(self, expression, limit=SOON_MS, argument=None):
        self.page.wait_for_function(expression, arg=argument, timeout=limit, polling=20)

    def close(self):
        self.context.close()
        assert not self.wrong, f"the browser complains: {self.wrong}"
