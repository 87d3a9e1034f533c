// Tests of `jindou import wukongim --dry-run` against a stand-in for WuKongIM 2.2.5, whose rows
// were captured from a real server.

import { writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import type { Test } from "tap";
import { type Exit, jindou } from "../../main/jindou.ts";
import { tempFolder } from "../../support/broker.ts";
import { t } from "../../support/suite.ts";
import { EXCHANGES, type FakeSource, replyTo, startSource } from "./import-source.ts";

const TOKEN = "fake-manager-token";

function report(
  t: Test,
  from: string,
  flags: readonly string[] = [],
  env: Record<string, string> = {},
): Promise<Exit> {
  return jindou(t, ["import", "wukongim", "--dry-run", `--from=${from}`, ...flags], { env });
}

/** Counts in the report about the captured server. */
const COUNTS = {
  nodes: 1,
  ...{ users: 13, users_without_token: 5 },
  ...{ devices: 12, devices_with_token: 10 },
  ...{ groups: 7, memberships: 10, personal_channels: 9, messages: 157 },
  ...{ conversations: 37, system_accounts: 2 },
};

const CANNOT_BE_MOVED = {
  channel_types: { count: 2, examples: ["vis1|help, type 3", "tmp1, type 8"] },
  unreadable_members: { count: 1, examples: ["room/ü:1|2 x?"] },
  device_flags: { count: 1 },
  unread_commands: { count: 5 },
};

t.test(
  "a dry run counts the data of a WuKongIM server, lists the data that cannot be moved, and only reads",
  async (t) => {
    const source = await startSource(t, TOKEN);
    const file = join(await tempFolder(t), "token");
    await writeFile(file, `${TOKEN}\n`);
    const { code, stdout } = await report(t, source.url, ["--json"], {
      JINDOU_IMPORT_TOKEN_FILE: file,
    });
    t.equal(code, 0);
    const { examples_without_token: examples, cannot_be_moved, ...counts } = JSON.parse(stdout);
    t.same(counts, COUNTS);
    t.same(examples.toSorted(), ["eve", "fay", "gus", "hal", "vis1"]);
    t.match(cannot_be_moved, CANNOT_BE_MOVED);
    t.same(Object.keys(cannot_be_moved).toSorted(), Object.keys(CANNOT_BE_MOVED).toSorted());
    t.ok(source.requests.every(({ method }) => method === "GET"));
    const paths = source.requests.map(({ url = "" }) => url.replace(/\?.*/, ""));
    t.notOk(
      paths.some((path) => /messagesync|message\/sync/.test(path)),
      "no call changes anything",
    );
    t.ok(source.requests.length > 30, `the listings have pages: ${source.requests.length} calls`);
    t.ok(source.maxConcurrent <= 4, `${source.maxConcurrent} calls at once`);
  },
);

t.test(
  "the text report of a dry run has counts, and examples of data that cannot be moved",
  async (t) => {
    const source = await startSource(t);
    const { code, stdout, stderr } = await report(t, source.url);
    t.equal(code, 0);
    for (const line of [
      /^ {2}users +13$/m,
      /^ {2}messages in groups and personal channels +157$/m,
      /^Users without a token cannot connect to Jindou: ("\w+"(, )?){5}\.$/m,
      /^ {2}channels of types other than 1 and 2, .*: 2 \("vis1\|help, type 3", "tmp1, type 8"\)$/m,
      /^ {2}groups whose members cannot be read, .*: 1 \("room\/ü:1\|2 x\?"\)$/m,
    ])
      t.match(stdout, line);
    t.match(stderr, /^Reading devices and users …$/m);
  },
);

t.test(
  "the WuKongIM stand-in returns the captured rows in the same order as the real server",
  async (t) => {
    const listings = EXCHANGES.filter(
      ({ name, request }) =>
        /: page 1|^(devices|users|channels): first page of oldest first/.test(name) &&
        /^\/cluster\/(devices|users|channels|nodes\/1\/channels)\?limit=\d+(&pre=1&offset_created_at=1)?$/.test(
          request.path,
        ),
    );
    t.ok(listings.length >= 6, `${listings.length} pages are compared`);
    const keysOf = (body: string) =>
      [...body.matchAll(/"created_at":(\d+)/g)].map(([, key]) => key);
    for (const { request, response } of listings) {
      const limited = request.path.replace(/limit=\d+/, "limit=3");
      const expected = keysOf(response.body);
      const page = limited.includes("pre=1") ? expected.slice(-3) : expected.slice(0, 3);
      t.same(keysOf(replyTo(limited).body), page, request.path);
    }
  },
);

t.test("a dry run repeats failed calls, and explains a failure that persists", async (t) => {
  const source = await startSource(t, TOKEN);
  const env = { JINDOU_IMPORT_TOKEN: TOKEN };
  const failures = new Set<string>();
  source.override = (path) => {
    if (failures.size > 2 || failures.has(path)) return undefined;
    failures.add(path);
    return { status: failures.size === 1 ? 500 : 200, body: "" };
  };
  const { code, stdout } = await report(t, source.url, ["--json"], env);
  t.equal(code, 0);
  t.match(JSON.parse(stdout), COUNTS, "failed calls and empty answers are repeated");
  source.override = undefined;
  const other = await startOther(t);
  for (const [from, settings, message] of [
    [source.url, {}, /needs a token\. Set JINDOU_IMPORT_TOKEN/],
    [source.url, { JINDOU_IMPORT_TOKEN: "wrong" }, /rejects the token in JINDOU_IMPORT_TOKEN/],
    [`${other}/html`, {}, /its response is not JSON/],
    [`${other}/missing`, {}, /it responds with the status 404/],
  ] as const)
    t.match(await report(t, from, [], settings), { code: 1, stdout: "", stderr: message });
  brokenRow(source, '{"data":[{"uid":7}],"more":0}');
  t.match(await report(t, source.url, [], env), { code: 1, stderr: /no valid uid field/ });
  brokenRow(source, '{"data":"none"}');
  t.match(await report(t, source.url, [], env), { code: 1, stderr: /is not from a WuKongIM/ });
});

t.test("an import with a missing or invalid argument is refused with an explanation", async (t) => {
  for (const [argv, message] of [
    [["import"], /jindou import wukongim/],
    [["import", "other", "--dry-run"], /jindou import wukongim/],
    [["import", "wukongim", "--from=http://127.0.0.1:5001"], /Name the node with --to/],
    [["import", "wukongim", "--from=http://h", "--to=nowhere"], /--to=http/],
    [["import", "wukongim", "--from=http://h", "--to=http://h", "--dry-run"], /does not take --to/],
    [["import", "wukongim", "--dry-run"], /--from=http/],
    [["import", "wukongim", "--dry-run", "--from=nowhere"], /--from=http/],
    [["import", "wukongim", "--dry-run", "--from=http://u:p@h"], /must not contain/],
    [["import", "wukongim", "--dry-run", "--token=x"], /JINDOU_IMPORT_TOKEN/],
    [["import", "wukongim", "--dry-run", "--from=http://h", "--rate=0"], /--rate/],
  ] as const)
    t.match(await jindou(t, argv), { code: 2, stdout: "", stderr: message }, argv.join(" "));
});

function brokenRow(source: FakeSource, body: string): void {
  source.override = (path) => (path.includes("devices") ? { status: 200, body } : undefined);
}

/** Starts a server that is not WuKongIM. It answers with a page below `/html`, else with 404. */
async function startOther(t: Test): Promise<string> {
  const server = createServer(({ url }, response) =>
    response.writeHead(url?.startsWith("/html/") ? 200 : 404).end("<html>"),
  );
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.teardown(() => server.close());
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}
