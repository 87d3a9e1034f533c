// The console in Chromium. Every page is watched: an error in the page, a message in its console or
// a violation of its policy fails the test, and `audit` runs axe-core.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import type { Browser, Page } from "playwright-core";
import type { Test } from "tap";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

export interface Look {
  readonly width?: number;
  readonly scheme?: "light" | "dark";
}

/** Opens the console of an address and returns its page. */
export async function openConsole(
  t: Test,
  browser: Browser,
  { url, width = 1280, scheme = "light" }: Look & { readonly url: string },
): Promise<Page> {
  const context = await browser.newContext({
    viewport: { width, height: 860 },
    colorScheme: scheme,
  });
  t.teardown(() => context.close());
  const page = await context.newPage();
  page.on("pageerror", (error) => t.fail(`error in the page: ${error.message}`));
  page.on("console", (message) => {
    const isExpected = /status of 40[134]/.test(message.text()); // a refusal that the page shows
    if (message.type() === "error" && !isExpected) t.fail(`console: ${message.text()}`);
  });
  page.on("dialog", (dialog) => {
    t.fail(`a dialog was opened: ${dialog.message()}`);
    void dialog.dismiss();
  });
  await page.goto(`${url}/console/`);
  return page;
}

/** Opens a page of the console by its address and waits for its heading. */
export async function visit(page: Page, target: string, heading: string): Promise<void> {
  await page.evaluate(`location.hash = ${JSON.stringify(target)}`);
  await page.getByRole("heading", { level: 1, name: heading, exact: true }).waitFor();
}

/** Logs in with a password. */
export async function logIn(page: Page, username: string, password: string): Promise<void> {
  await page.getByLabel("Username").fill(username);
  await page.getByLabel("Password").fill(password);
  await page.getByRole("button", { name: "Log in" }).click();
  await page.getByRole("heading", { level: 1, name: "Overview" }).waitFor();
}

/** Checks that axe-core finds no serious or critical problem in the page as it is. */
export async function audit(t: Test, page: Page, what: string): Promise<void> {
  await page.evaluate(AXE);
  const violations = await page.evaluate(async () => {
    const { axe } = globalThis as unknown as {
      readonly axe: {
        run(): Promise<{
          readonly violations: readonly {
            readonly id: string;
            readonly impact: string;
            readonly nodes: readonly { readonly html: string }[];
          }[];
        }>;
      };
    };
    const { violations } = await axe.run();
    return violations
      .filter(({ impact }) => impact === "serious" || impact === "critical")
      .map(({ id, nodes }) => `${id}: ${nodes[0]?.html.slice(0, 160)}`);
  });
  t.same(violations, [], `${what}: axe-core finds nothing serious`);
}

/** Checks that the page is not wider than its window. */
export async function assertFits(t: Test, page: Page, what: string): Promise<void> {
  const root = page.locator("html");
  const width = await root.evaluate(({ scrollWidth }) => scrollWidth);
  const limit = await root.evaluate(({ clientWidth }) => clientWidth);
  t.ok(width <= limit, `${what} fits: ${width} of ${limit} pixels`);
}
