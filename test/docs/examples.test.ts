// Tests of `docs/examples`: both backends serve the chat page and the AI page, which work in a
// browser. The tests of the pages that describe the other examples also test these examples.

import { spawn } from "node:child_process";
import { readdirSync } from "node:fs";
import { join } from "node:path";
import type { Page } from "playwright-core";
import t, { type Test } from "tap";
import { eventually } from "../behaviour/world.ts";
import { launchBrowser } from "../client/browser.ts";
import { startBroker } from "../support/broker.ts";
import { tieToParent } from "../support/child.ts";
import { freePort } from "../support/redis.ts";
import { ROOT, readPage } from "./pages.ts";

const EXAMPLES = join(ROOT, "docs/examples");

t.test(
  "docs/examples/README.md names every file in its folder, and each has 30 to 60 lines that are not blank",
  async (t) => {
    const index = readPage("docs/examples/README.md");
    const files = readdirSync(EXAMPLES, { withFileTypes: true })
      .filter((entry) => entry.isFile() && entry.name !== "README.md")
      .map(({ name }) => name);
    t.same(files.sort(), ["ai.html", "backend.mjs", "backend.py", "chat.html"]);
    for (const file of files) {
      t.ok(index.includes(`](${file})`), `the index names ${file}`);
      const lines = readPage(`docs/examples/${file}`).match(/^.*\S.*$/gm)?.length ?? 0;
      t.ok(lines >= 30 && lines <= 60, `${file} has 30 to 60 lines that are not blank (${lines})`);
    }
  },
);

for (const [command, file] of [
  [process.execPath, "backend.mjs"],
  ["python3", "backend.py"],
] as const)
  t.test(`the chat page and the AI page work with docs/examples/${file}`, async (t) => {
    const broker = await startBroker(t);
    const url = await startBackend(t, [command, join(EXAMPLES, file)], {
      API: `http://127.0.0.1:${broker.apiPort}`,
      CLIENT: `ws://127.0.0.1:${broker.clientPort}`,
    });
    const browser = await launchBrowser(t);
    const open = async (name: string): Promise<Page> => {
      const page = await browser.newPage();
      page.on("pageerror", (error) => t.fail(`error in ${name}: ${error.message}`));
      await page.goto(`${url}/${name}`);
      return page;
    };
    const [ann, ben, reader] = [
      await open("chat.html"),
      await open("chat.html"),
      await open("ai.html"),
    ];

    await joinChat(ann, "ann");
    await say(ann, "Hello, who is there?");
    await shows(ann, ["ann: Hello, who is there? ✓"]);
    await joinChat(ben, "ben");
    await shows(ben, ["ann: Hello, who is there?"]);
    await say(ben, "Ben is.");
    await shows(ann, ["ann: Hello, who is there? ✓", "ben: Ben is."]);

    await reader.fill("[name=name]", "ann");
    await reader.fill("[name=question]", "What time is it?");
    await reader.click("#ask button");
    const answer = "You asked: What time is it? A model would answer here, word by word. ";
    await eventually(async () => (await reader.textContent("#answers")) === `${answer}closed`);
    await reader.click("#ask button");
    await reader.click("#answers button");
    await eventually(
      async () => (await reader.textContent("#answers"))?.endsWith("cancelled") ?? false,
    );
    t.pass("the pages show the messages and the streams");
  });

t.test(
  "the page of docs/examples/ai-stream shows an answer after a reload, and can regenerate it",
  async (t) => {
    const broker = await startBroker(t);
    const file = join(EXAMPLES, "ai-stream/backend.mjs");
    const url = await startBackend(t, [process.execPath, file], {
      API: `http://127.0.0.1:${broker.apiPort}`,
      CLIENT: `ws://127.0.0.1:${broker.clientPort}`,
    });
    const page = await (await launchBrowser(t)).newPage();
    page.on("pageerror", (error) => t.fail(`error in page.html: ${error.message}`));
    await page.goto(`${url}/page.html`);
    await page.fill("[name=question]", "What time is it?");
    await page.click("#ask button");
    const answer = "[clock] You asked: What time is it? A model would answer here, word by word. ";
    const showsAnswers = (count: number) =>
      eventually(async () => {
        const lines = await page.locator("#answers p").allTextContents();
        const buttons = await page.locator("#answers button").count();
        return buttons === count && lines.join("|") === Array(count).fill(answer).join("|");
      });
    await eventually(async () => {
      const [line = ""] = await page.locator("#answers p").allTextContents();
      return line !== "";
    });
    await page.reload();
    await showsAnswers(1);
    await page.click("#answers button");
    await showsAnswers(2);
    t.equal(await page.textContent("#status"), "", "the page shows no error");
  },
);

async function startBackend(
  t: Test,
  [program, file]: readonly [string, string],
  addresses: Readonly<Record<string, string>>,
): Promise<string> {
  const port = await freePort();
  const child = spawn(...tieToParent(program, [file]), {
    cwd: ROOT,
    env: { PATH: process.env.PATH, ...addresses, PORT: `${port}` },
  });
  t.teardown(() => child.kill("SIGKILL"));
  let output = "";
  for (const stream of [child.stdout, child.stderr])
    stream.setEncoding("utf8").on("data", (text: string) => {
      output += text;
    });
  const url = `http://127.0.0.1:${port}`;
  await eventually(async () => {
    if (child.exitCode !== null) throw new Error(`${file} exited: ${output}`);
    return fetch(url).then(
      () => true,
      () => false,
    );
  });
  return url;
}

async function joinChat(page: Page, name: string): Promise<void> {
  await page.fill("[name=name]", name);
  await page.click("#join button");
}

async function say(page: Page, text: string): Promise<void> {
  await page.fill("[name=text]", text);
  await page.click("#say button");
}

async function shows(page: Page, lines: readonly string[]): Promise<void> {
  await eventually(async () => {
    const items = await page.locator("#log li").allTextContents();
    return items.join("\n") === lines.join("\n");
  });
}
