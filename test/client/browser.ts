// A headless Chromium for tests: a page of its own that has the scenarios bundled, and reaches the
// test's broker through functions of the test. Chromium is found or the test fails with what to do;
// `.ci/chromium` installs it.

import { execFileSync } from "node:child_process";
import { once } from "node:events";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";
import { type Browser, chromium, type Page } from "playwright-core";
import type { Test } from "tap";

const SCRIPT = fileURLToPath(new URL("../../.ci/chromium", import.meta.url));

/** Closed with the test `t`. */
export async function launchBrowser(t: Test): Promise<Browser> {
  const browser = await chromium.launch({
    executablePath: findChromium(),
    args: ["--no-sandbox"], // Chromium's does not work for root
  });
  t.teardown(() => browser.close());
  return browser;
}

/** A page with what the module at `path` exports as the global `bundled`. */
export async function openPage(t: Test, browser: Browser, path: string): Promise<Page> {
  const script = await bundle(path);
  const page = await browser.newPage();
  t.teardown(() => page.close());
  page.on("pageerror", (error) => t.fail(`in the page: ${error.message}`));
  await page.goto(await serve(t, `<!doctype html><script>${script}</script>`));
  return page;
}

/** Its path; throws the sentence that says what to install. */
export function findChromium(): string {
  return execFileSync(SCRIPT, ["--print"], { encoding: "utf8" }).trim();
}

async function bundle(path: string): Promise<string> {
  const { outputFiles } = await build({
    entryPoints: [path],
    bundle: true,
    platform: "browser",
    format: "iife",
    globalName: "bundled",
    write: false,
  });
  return outputFiles.map(({ text }) => text).join("");
}

/** A page from the same machine may open sockets to it, whatever the browser thinks of others. */
async function serve(t: Test, html: string): Promise<string> {
  const server = createServer((_request, response) => {
    response.setHeader("content-type", "text/html; charset=utf-8");
    response.end(html);
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  t.teardown(() => {
    server.closeAllConnections();
    server.close();
  });
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}/`;
}
