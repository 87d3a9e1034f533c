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
  "kick",
  "restart",
  "restartStream",
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
  t.test(`the scenario ${name} succeeds in Chromium`, { timeout: 300_000 }, async (t) => {
    const page = await openPage(t, await browser, MODULE);
    await page.exposeFunction("post", world.post);
    await page.exposeFunction("kill", world.kill);
    await page.exposeFunction("start", world.start);
    const facts: readonly Fact[] = await page.evaluate(
      ([name, url]) => {
        const { bundled, ...functions } = globalThis as unknown as PageGlobals & Omit<World, "url">;
        const { post, kill, start } = functions;
        return bundled.SCENARIOS[name]({ url, post, kill, start });
      },
      [name, world.url] as const,
    );
    for (const [description, actual, expected] of facts) t.same(actual, expected, description);
  });
