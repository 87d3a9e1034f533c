// Runs the scenarios in headless Chromium, with the SDK bundled for browsers, one after the other
// against one broker process.

import { fileURLToPath } from "node:url";
import { t } from "../support/suite.ts";
import { launchBrowser, openPage } from "./browser.ts";
import { startWorld } from "./restartable.ts";
import type { Fact, ScenarioName, World } from "./scenario.ts";

const MODULE = fileURLToPath(new URL("scenario.ts", import.meta.url));
const NAMES: readonly ScenarioName[] = [
  "talk",
  "follow",
  "account",
  "typing",
  "kick",
  "restart",
  "restartStream",
  "records",
];

/** Globals of the page: the bundled module, and the world's functions that the test exposes. */
interface PageGlobals {
  readonly bundled: typeof import("./scenario.ts");
  readonly world: Omit<World, "url">;
}

const world = await startWorld(t);

t.test("every scenario that runs in Node also runs in a browser", async (t) => {
  const { SCENARIOS } = await import("./scenario.ts");
  t.same(NAMES, Object.keys(SCENARIOS));
});

const browser = launchBrowser(t);
browser.catch(() => undefined); // each test that needs the browser fails with this error

for (const name of NAMES)
  t.test(`the SDK passes the scenario ${name} in Chromium`, { timeout: 300_000 }, async (t) => {
    const page = await openPage(t, await browser, MODULE);
    await page.exposeFunction("post", world.post);
    await page.exposeFunction("sign", world.sign);
    await page.exposeFunction("kill", world.kill);
    await page.exposeFunction("start", world.start);
    const facts: readonly Fact[] = await page.evaluate(
      ([name, url]) => {
        const { bundled, ...functions } = globalThis as unknown as PageGlobals & Omit<World, "url">;
        const { post, sign, kill, start } = functions;
        return bundled.SCENARIOS[name]({ url, post, sign, kill, start });
      },
      [name, world.url] as const,
    );
    for (const [description, actual, expected] of facts) t.same(actual, expected, description);
  });

const ENTRY = fileURLToPath(new URL("../../src/client/index.ts", import.meta.url));
const TAB = fileURLToPath(new URL("../../src/client/tab.ts", import.meta.url));

t.test(
  "an address that the page's Content-Security-Policy blocks is reported at once, with the reason",
  async (t) => {
    const page = await openPage(t, await browser, ENTRY);
    const policy = `<meta http-equiv="Content-Security-Policy" content="connect-src 'none'">`;
    await page.evaluate(`document.head.append(...new DOMParser()
    .parseFromString(${JSON.stringify(policy)}, "text/html").head.children)`);
    const message = await page.evaluate((url) => {
      const { bundled } = globalThis as unknown as {
        bundled: typeof import("../../src/client/index.ts");
      };
      const client = bundled.connect({ url, uid: "amy", timeouts: { connectMs: 600_000 } });
      return new Promise<string>((resolve) =>
        client.on("error", ({ message }) => resolve(message)),
      );
    }, world.url);
    t.match(message, /Content-Security-Policy \(connect-src\)/);
  },
);

t.test("the device id of a tab is kept over a reload and not copied to another tab", async (t) => {
  const page = await openPage(t, await browser, TAB);
  const idOf = (tab: typeof page): Promise<string> =>
    tab.evaluate(() => {
      const { bundled } = globalThis as unknown as {
        bundled: typeof import("../../src/client/tab.ts");
      };
      return bundled.tabDeviceId();
    });
  const id = await idOf(page);
  t.match(id, /^[0-9a-f]{24}$/);
  await page.reload();
  t.equal(await idOf(page), id, "a reload keeps the id");
  // Like a duplicated tab, a page that another page opens gets a copy of the opener's
  // sessionStorage.
  const [copy] = await Promise.all([
    page.waitForEvent("popup"),
    page.evaluate("void window.open(location.href)"),
  ]);
  await copy.waitForLoadState();
  t.equal(await copy.evaluate('sessionStorage.getItem("jindou-device")'), id);
  const copyId = await idOf(copy);
  t.match(copyId, /^[0-9a-f]{24}$/);
  t.not(copyId, id, "a duplicated tab gets another id");
  await copy.reload();
  t.equal(await idOf(copy), copyId);
});
