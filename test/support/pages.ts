// Opens the built pages in Chromium for tests, fails the test if a page reports an error, checks
// that a page is accessible, and takes the pictures of the docs.

import { readFileSync } from "node:fs";
import { stat, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { fileURLToPath } from "node:url";
import type { Browser, Page } from "playwright-core";
import type { Test } from "tap";

export interface View {
  readonly width: number;
  readonly height?: number;
  readonly scheme?: "light" | "dark";
  /** Matches lines on the console that do not fail the test. */
  readonly expected?: RegExp;
}

/** Maximum size of a picture in the docs. */
const MAX_PICTURE_BYTES = 80 * 1024;
const IMAGES = new URL("../../docs/images/", import.meta.url);
const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

/**
 * Opens a page of a node. The test fails on an uncaught error, on a dialog, and on an error or
 * warning in the console, where Chromium also reports violations of the Content-Security-Policy.
 */
export async function openPage(
  t: Test,
  browser: Browser,
  url: string,
  { width, height = 800, scheme = "light", expected }: View,
): Promise<Page> {
  const page = await browser.newPage({ viewport: { width, height }, colorScheme: scheme });
  t.teardown(() => page.close());
  page.setDefaultTimeout(120_000);
  page.on("pageerror", (error) => t.fail(`uncaught error in the page: ${error.message}`));
  page.on("dialog", (dialog) => {
    t.fail(`the page opens a dialog: ${dialog.message()}`);
    void dialog.dismiss();
  });
  page.on("console", (line) => {
    const isFailure = line.type() === "error" || line.type() === "warning";
    if (isFailure && expected?.test(line.text()) !== true)
      t.fail(`${line.type()} on the console: ${line.text()}`);
  });
  await page.goto(url);
  return page;
}

interface AxeViolation {
  readonly id: string;
  readonly impact: string;
  readonly nodes: readonly { readonly html: string; readonly failureSummary: string }[];
}

/** Checks that axe finds nothing serious or critical on the page. */
export async function checkAccessible(t: Test, page: Page, state: string): Promise<void> {
  await page.evaluate(AXE);
  const violations = await page.evaluate<readonly AxeViolation[]>(
    "axe.run({ resultTypes: ['violations'] }).then(({ violations }) => violations)",
  );
  const severe = violations.filter(({ impact }) => impact === "serious" || impact === "critical");
  t.same(
    severe.map(({ id, nodes }) => [
      id,
      nodes.map(({ html, failureSummary }) => [html, failureSummary]),
    ]),
    [],
    `${state}: axe finds nothing serious`,
  );
}

/**
 * Checks that the docs have a light and a dark picture of the page. With JINDOU_TEST_PICTURES=write
 * the pictures are taken first, as WebP, which is half as large as PNG.
 */
export async function checkPictures(t: Test, page: Page, name: string): Promise<void> {
  for (const scheme of ["light", "dark"] as const) {
    const file = fileURLToPath(new URL(`${name}-${scheme}.webp`, IMAGES));
    if (process.env.JINDOU_TEST_PICTURES === "write") {
      await page.emulateMedia({ colorScheme: scheme });
      await page.waitForTimeout(500); // charts are redrawn in the scheme's colours
      await writeFile(file, await takePicture(page));
    }
    const { size } = await stat(file);
    t.ok(size <= MAX_PICTURE_BYTES, `${name}-${scheme} has ${size} bytes`);
  }
}

async function takePicture(page: Page): Promise<Buffer> {
  const png = await page.screenshot({ animations: "disabled", caret: "hide" });
  const painter = await page.context().browser()?.newPage();
  if (painter === undefined) throw new Error("the page has no browser");
  const url = await painter.evaluate<string>(`(async () => {
    const image = new Image();
    image.src = "data:image/png;base64,${png.toString("base64")}";
    await image.decode();
    const canvas = document.createElement("canvas");
    Object.assign(canvas, { width: image.width, height: image.height });
    canvas.getContext("2d").drawImage(image, 0, 0);
    return canvas.toDataURL("image/webp", 0.85);
  })()`);
  await painter.close();
  return Buffer.from(url.slice(url.indexOf(",") + 1), "base64");
}
