// The console in Chromium. A test fails on an error in the page, on a violation of the page's
// Content-Security-Policy, and on an error in the browser's console other than a call that the API
// refused.

import type { Browser, Page } from "playwright-core";
import type { Test } from "tap";
import { openPage, type View } from "../support/pages.ts";

/** Matches the browser's error about a call that the API refused. The page shows such refusals. */
const REFUSAL = /status of 40[134]/;

/** Opens the console of an address and returns its page. */
export function openConsole(
  t: Test,
  browser: Browser,
  { url, width = 1280, ...look }: Partial<View> & { readonly url: string },
): Promise<Page> {
  const view = { ...look, width, height: 860, expected: REFUSAL };
  return openPage(t, browser, `${url}/console/`, view);
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

/** Checks that the page is not wider than its window. */
export async function assertFits(t: Test, page: Page, what: string): Promise<void> {
  const root = page.locator("html");
  const width = await root.evaluate(({ scrollWidth }) => scrollWidth);
  const limit = await root.evaluate(({ clientWidth }) => clientWidth);
  t.ok(width <= limit, `${what} fits: ${width} of ${limit} pixels`);
}
