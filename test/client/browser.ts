// Headless Chromium for tests. A page contains the bundled module and calls the broker through
// functions of the test. `.ci/chromium` installs Chromium; without it, launching fails with an
// error that names this script.

import { execFileSync } from "node:child_process";
import { once } from "node:events";
import { createServer, type RequestListener } from "node:http";
import type { AddressInfo } from "node:net";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";
import { type Browser, chromium, type Page } from "playwright-core";
import type { Test } from "tap";

const SCRIPT = fileURLToPath(new URL("../../.ci/chromium", import.meta.url));

/** Launches a browser that is closed at the end of the test `t`. */
export async function launchBrowser(t: Test, args: readonly string[] = []): Promise<Browser> {
  const browser = await chromium.launch({
    executablePath: findChromium(),
    args: ["--no-sandbox", ...args], // the sandbox of Chromium does not work as root
  });
  t.teardown(() => browser.close());
  return browser;
}

/** Opens a page whose global `bundled` contains the exports of the module at `path`. */
export async function openPage(t: Test, browser: Browser, path: string): Promise<Page> {
  const script = await bundle(path);
  const page = await browser.newPage();
  t.teardown(() => page.close());
  page.on("pageerror", (error) => t.fail(`uncaught error in the page: ${error.message}`));
  const html = `<!doctype html><script>${script}</script>`;
  const url = await servePages(t, (_request, response) => {
    response.setHeader("content-type", "text/html; charset=utf-8");
    response.end(html);
  });
  await page.goto(url);
  return page;
}

/** Returns the path of Chromium. Throws an error that names what to install. */
export function findChromium(): string {
  return execFileSync(SCRIPT, ["--print"], { encoding: "utf8" }).trim();
}

/** Returns a script that puts the exports of the module at `path` into the global `bundled`. */
export async function bundle(path: string): Promise<string> {
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

/**
 * Serves pages over HTTP from this machine, so that browsers allow them to open sockets to this
 * machine. Returns the address.
 */
export async function servePages(t: Test, answer: RequestListener): Promise<string> {
  const server = createServer(answer);
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  t.teardown(() => {
    server.closeAllConnections();
    server.close();
  });
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}/`;
}
