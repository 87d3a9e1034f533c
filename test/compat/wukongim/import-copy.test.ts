// Tests of `jindou import wukongim --to`: the command copies the data of a stand-in for WuKongIM
// 2.2.5 into a node, in several passes, while messages arrive and the command and the node are
// killed.

import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { Test } from "tap";
import { jindou, spawnJindou } from "../../main/jindou.ts";
import { type Broker, spawnBroker, startBroker, tempFolder } from "../../support/broker.ts";
import { startRedis } from "../../support/redis.ts";
import { t } from "../../support/suite.ts";
import { type FakeSource, replyTo, startSource } from "./import-source.ts";

const KILLS = Number(process.env.JINDOU_TEST_KILLS ?? 2);
const TEAM = "1790000000000000001";
const TOKEN = "fake-manager-token";

function runImport(t: Test, source: FakeSource, node: Broker, flags: readonly string[] = []) {
  const argv = [
    "import",
    "wukongim",
    `--from=${source.url}`,
    `--to=http://127.0.0.1:${node.apiPort}`,
  ];
  return jindou(t, [...argv, "--json", ...flags], { env: { JINDOU_IMPORT_TOKEN: TOKEN } });
}

/** Returns the seq, the source id, the time and the payload of each message in a channel. */
async function historyOf(node: Broker, channel: string) {
  const texts: string[] = [];
  for (let after = 0; ; ) {
    const query = `${channel}&after=${after}&limit=500`;
    const { body } = await node.call(`/channel/messages?${query}`);
    for (const message of body.messages)
      texts.push(
        `${message.message_seq} ${message.source_id} ${message.timestamp} ${message.payload}`,
      );
    after = body.messages.at(-1)?.message_seq ?? after;
    if (body.more === 0) return texts;
  }
}

const sourceTexts = (source: FakeSource, id: string, type: number) =>
  source.messages
    .of(id, type)
    .map((row) => `${row.message_seq} ${row.message_idstr} ${row.timestamp} ${row.payload}`);

async function unreadOf(node: Broker, uid: string) {
  const { body } = await node.call("/conversation/sync", { uid });
  return Object.fromEntries(
    body.map((row: { channel_id: string; unread: number }) => [row.channel_id, row.unread]),
  );
}

t.test(
  "an import copies users, channels, messages and read positions in several passes, and a pass with --close closes the import",
  async (t) => {
    const source = await startSource(t, TOKEN);
    const node = await startBroker(t);
    const first = await runImport(t, source, node);
    t.equal(first.code, 0, first.stderr);
    const report = JSON.parse(first.stdout);
    t.match(report, { differences: [], closed: 0, messages: 156 });
    t.equal((await node.call("/readyz")).status, 503);

    source.messages.add(TEAM, 2, "cat", 30);
    source.messages.add("ann@ben", 1, "ben", 3);
    source.messages.add("club", 2, "ann", 3);
    const second = JSON.parse((await runImport(t, source, node)).stdout);
    t.match(second, { differences: [], closed: 0 });
    t.ok(second.messages < 60, "only new messages are read again");
    const last = await runImport(t, source, node, ["--close"]);
    t.equal(last.code, 0, last.stdout + last.stderr);
    const total = (await node.call("/admin/import")).body.stored.message;
    t.match(JSON.parse(last.stdout), { differences: [], compared: total, closed: 1 });
    t.match(JSON.parse(last.stdout).warnings, [
      /^\d+ conversations on the server are missing from the node/,
      /^The unread counts of 2 conversations were not compared/,
    ]);
    t.equal((await node.call("/readyz")).status, 200);
    t.match(
      await runImport(t, source, node),
      { code: 1, stderr: /rejects the call: No import is open, and a closed import/ },
      "a further pass is refused",
    );

    const team = `channel_id=${TEAM}&channel_type=2`;
    t.same(await historyOf(node, team), sourceTexts(source, TEAM, 2));
    const pair = await historyOf(node, "channel_id=ben&channel_type=1&uid=ann");
    t.equal(pair.length, source.messages.of("ann@ben", 1).length);
    t.match(await unreadOf(node, "ben"), { [TEAM]: 38, ann: 0 });
    t.match(await unreadOf(node, "cat"), { [TEAM]: 0 });
    t.match(await unreadOf(node, "kim"), { club: 3 });
    const state = await node.call("/channel/state?channel_id=quiet&channel_type=2");
    t.match(state.body, { ban: 1, large: 1, send_ban: 1, subscriber_count: 0 });
    const list = await node.call("/channel/members?channel_id=club&channel_type=2&list=blacklist");
    t.same(list.body.uids.toSorted(), ["9007199254740993123", "ivy"]);
    t.match((await node.call("/user/devices?uid=ann")).body, {
      devices: [{ device_flag: 0, has_token: 1 }, {}],
    });
    t.same((await node.call("/user/systemuids")).body, ["____helper", "sysbot"]);
    const stream = source.messages
      .of("ann@ben", 1)
      .find((row) => row.client_msg_no === "stream-done");
    t.match(pair[6], Buffer.from('{"type":1').toString("base64").slice(0, 8));
    t.ok(stream, "a finished stream was captured");
  },
);

t.test("an import without the node's credential fails at once, in both dialects", async (t) => {
  const source = await startSource(t, TOKEN);
  for (const dialect of ["jindou", "wukongim"]) {
    const node = await startBroker(t, {
      JINDOU_API_TOKEN: "a-long-static-token",
      JINDOU_API_DIALECT: dialect,
    });
    t.match(await runImport(t, source, node), {
      ...{ code: 1, stdout: "" },
      stderr: /rejects the credential: .*Set JINDOU_TOKEN to its api\.token/,
    });
  }
  t.ok(source.requests.length < 10, "only the nodes were called before the error");
});

t.test(
  "an import keeps deleted messages hidden even if the logs of the server cannot be read",
  async (t) => {
    const source = await startSource(t, TOKEN);
    const node = await startBroker(t);
    t.equal((await runImport(t, source, node)).code, 0);
    source.messages.add("club", 2, "ann", 3); // kim has deleted the four messages before them
    source.override = (path) =>
      path.startsWith("/cluster/logs") ? { status: 404, body: "" } : undefined;
    const { code, stdout, stderr } = await runImport(t, source, node, ["--close"]);
    t.equal(code, 0, stdout + stderr);
    t.match(JSON.parse(stdout).warnings[0], /^The server's slot logs cannot be read/);
    const { body } = await node.call("/conversation/sync", { uid: "kim", msg_count: 100 });
    const club = body.find((row: { readonly channel_id: string }) => row.channel_id === "club");
    t.same(
      club.recents.map((message: { readonly message_seq: number }) => message.message_seq),
      [7, 6, 5],
    );
    const state = await node.call("/channel/state?channel_id=quiet&channel_type=2");
    t.match(state.body, { ban: 1, large: 0 });
  },
);

t.test(
  "the files of --users and --channels add data that the server does not return, and a file of the wrong kind is rejected before anything is read",
  async (t) => {
    const source = await startSource(t, TOKEN);
    const node = await startBroker(t);
    const folder = await tempFolder(t);
    const fileOf = async (name: string, lines: readonly object[]) => {
      const path = join(folder, name);
      await writeFile(path, `${lines.map((line) => JSON.stringify(line)).join("\n")}\n\n`);
      return path;
    };
    const room = { channel_id: "room/ü:1|2 x?", channel_type: 2 };
    const users = await fileOf("users", [
      { kind: "token", uid: "eve", device_flag: 1, token: "token-eve" },
    ]);
    const channels = await fileOf("channels", [{ kind: "members", ...room, uids: ["ann", "eve"] }]);
    for (const [flag, path] of [
      ["users", channels],
      ["channels", users],
      ["users", join(folder, "missing")],
    ] as const)
      t.match(await runImport(t, source, node, [`--${flag}=${path}`]), {
        code: 2,
        stderr: new RegExp(`--${flag}`),
      });
    t.equal(source.requests.length, 0);
    const flags = [`--users=${users}`, `--channels=${channels}`, "--close"];
    const { code, stdout, stderr } = await runImport(t, source, node, flags);
    t.equal(code, 0, stdout + stderr);
    const query = new URLSearchParams({ channel_id: room.channel_id, channel_type: "2" });
    const membersOf = async (list = "") => {
      const { body } = await node.call(`/channel/members?${query}${list}`);
      return body.uids;
    };
    t.same((await membersOf()).toSorted(), ["ann", "eve"]);
    t.same(await membersOf("&list=whitelist"), ["ann"], "the server itself lists the allowlist");
    t.match((await node.call("/user/devices?uid=eve")).body, { devices: [{ has_token: 1 }] });
  },
);

t.test(
  "--compare=all and --close compare the whole imported history, except messages that the node refuses",
  async (t) => {
    const source = await startSource(t, TOKEN);
    const node = await startBroker(t, { JINDOU_MESSAGES_MAX_PAYLOAD_BYTES: "1024" });
    const rows = source.messages.of(TEAM, 2);
    const replace = (seq: number, payload: string) => {
      const at = rows.findIndex((row) => row.message_seq === seq);
      const row = rows[at];
      if (row !== undefined) rows[at] = { ...row, payload };
      return row?.payload ?? "";
    };
    replace(20, Buffer.alloc(2000, "x").toString("base64"));
    const first = await runImport(t, source, node);
    t.equal(first.code, 0, first.stdout + first.stderr);
    t.match(JSON.parse(first.stdout), { refused: { too_large: { count: 1 } }, differences: [] });
    const before = replace(10, Buffer.from('{"type":1}').toString("base64"));
    t.equal((await runImport(t, source, node)).code, 0, "a run compares only what it reads");
    const all = await runImport(t, source, node, ["--compare=all"]);
    t.match(all, { code: 1, stderr: /differ/ });
    t.match(JSON.parse(all.stdout).differences, [
      new RegExp(`^${TEAM}: messages 1 to \\d+ differ$`),
    ]);
    t.match(await runImport(t, source, node, ["--close"]), { code: 1, stderr: /not closed/ });
    replace(10, before);
    const [deleted] = rows.splice(9, 1);
    const short = await runImport(t, source, node, ["--close"]);
    t.match(JSON.parse(short.stdout).differences, [
      /the server has deleted 1 of them, but the node has not$/,
    ]);
    if (deleted !== undefined) rows.splice(9, 0, deleted);
    const { code, stdout, stderr } = await runImport(t, source, node, ["--close"]);
    t.equal(code, 0, stdout + stderr);
    t.match(JSON.parse(stdout), { differences: [], closed: 1 });
  },
);

t.test(
  "a run with --close that fails to close the import stores no unfinished stream, so a later run stores the stream's whole text",
  async (t) => {
    const source = await startSource(t, TOKEN);
    const node = await startBroker(t);
    const rows = source.messages.of(TEAM, 2);
    const replace = (at: number, fields: object) => {
      const row = rows.at(at);
      if (row !== undefined) rows[rows.indexOf(row)] = { ...row, ...fields };
      return row;
    };
    source.messages.add(TEAM, 2, "ann", 2);
    const textOf = (text: string) => ({ setting: 2, stream_data: btoa(text) });
    replace(-2, textOf("The"));
    t.equal((await runImport(t, source, node)).code, 0);
    const before = replace(10, { payload: btoa('{"type":1}') });
    const refused = await runImport(t, source, node, ["--close"]);
    t.match(refused, { code: 1, stderr: /not closed/ });
    replace(10, before ?? {});
    replace(-2, { ...textOf("The whole text"), end: 1 });
    const { code, stdout, stderr } = await runImport(t, source, node, ["--close"]);
    t.equal(code, 0, stdout + stderr);
    const texts = await historyOf(node, `channel_id=${TEAM}&channel_type=2`);
    t.equal(texts.length, rows.length);
    const payload = atob(texts.at(-2)?.split(" ").at(-1) ?? "");
    t.match(JSON.parse(payload), { content: "The whole text" });
  },
);

t.test(
  "a group that was disbanded in one import run and exists again in a later run is reported as a difference",
  async (t) => {
    const source = await startSource(t, TOKEN);
    const node = await startBroker(t);
    t.equal((await runImport(t, source, node)).code, 0);
    source.override = (path) => {
      if (!path.startsWith("/cluster/channels?")) return undefined;
      const reply = replyTo(path);
      return { ...reply, body: reply.body.replaceAll('"disband":1', '"disband":0') };
    };
    const { code, stdout, stderr } = await runImport(t, source, node, ["--close"]);
    t.match({ code, stderr }, { code: 1, stderr: /not closed/ });
    t.match(JSON.parse(stdout).differences, [/^gone: the channel was disbanded/]);
  },
);

t.test(
  "the file of --channels may name a disbanded group and may disband another group, in every run",
  async (t) => {
    const source = await startSource(t, TOKEN);
    const node = await startBroker(t);
    const file = join(await tempFolder(t), "channels.ndjson");
    const lines = [
      { channel_id: "gone", large: 1 },
      { channel_id: "quiet", disband: 1 },
    ].map((line) => JSON.stringify({ kind: "channel", channel_type: 2, ...line }));
    await writeFile(file, lines.join("\n"));
    for (const flags of [[], ["--close"]]) {
      const run = await runImport(t, source, node, [`--channels=${file}`, ...flags]);
      t.equal(run.code, 0, run.stdout + run.stderr);
      t.match(JSON.parse(run.stdout), { differences: [], closed: flags.length });
    }
    const state = await node.call("/channel/state?channel_id=quiet&channel_type=2");
    t.match(state.body, { disband: 1 });
  },
);

t.test(
  "an import leaves out and counts a message that is larger than the node's maximum body size",
  async (t) => {
    const source = await startSource(t, TOKEN);
    const node = await startBroker(t, { JINDOU_API_MAX_BODY_BYTES: "100000" });
    source.messages.add(TEAM, 2, "ann", 500);
    const rows = source.messages.of(TEAM, 2);
    const at = 20; // all members have read this message
    const [row] = rows.slice(at);
    if (row !== undefined)
      rows[at] = { ...row, payload: Buffer.alloc(3_000_000).toString("base64") };
    const { code, stdout, stderr } = await runImport(t, source, node, ["--close"]);
    t.equal(code, 0, stderr);
    t.match(JSON.parse(stdout), { refused: { too_large: { count: 1 } }, closed: 1 });
    const history = await historyOf(node, `channel_id=${TEAM}&channel_type=2`);
    t.equal(history.length, rows.length - 1);
  },
);

t.test(
  "after an import, conversations are listed by the time of their newest message, even if an old group has many messages",
  async (t) => {
    const source = await startSource(t, TOKEN);
    const node = await startBroker(t);
    source.messages.add(TEAM, 2, "cat", 6000);
    const rows = source.messages.of(TEAM, 2);
    rows.splice(0, rows.length, ...rows.map((row) => ({ ...row, timestamp: 1_600_000_000 })));
    const { code, stdout, stderr } = await runImport(t, source, node, ["--close"]);
    t.equal(code, 0, stdout + stderr);
    const total = (await node.call("/admin/import")).body.stored.message;
    t.match(JSON.parse(stdout), { differences: [], messages: total, compared: total });
    const { body } = await node.call("/conversation/sync", { uid: "ben" });
    t.ok(body.length > 1);
    t.equal(body.at(-1).channel_id, TEAM);
  },
);

t.test(
  "after an import, a conversation with an open stream and the newest message is listed first",
  async (t) => {
    const source = await startSource(t, TOKEN);
    const node = await startBroker(t);
    source.messages.add(TEAM, 2, "cat", 1200);
    const open = { setting: 2, stream_data: btoa("The") };
    const logs = ["ann@cat", "ann@fay", "ann@ann", "ann@9007199254740993123"].map((id) =>
      source.messages.of(id, 1),
    );
    for (const [rows, at] of [
      [source.messages.of(TEAM, 2), -5] as const,
      ...logs.map((rows) => [rows, -1] as const),
    ]) {
      const row = rows.at(at);
      if (row !== undefined) rows[rows.indexOf(row)] = { ...row, ...open };
    }
    const { code, stdout, stderr } = await runImport(t, source, node, ["--close"]);
    t.equal(code, 0, stdout + stderr);
    const { body } = await node.call("/conversation/sync", { uid: "ann" });
    t.equal(body[0].channel_id, TEAM);
  },
);

t.test(
  "an import compares the unread counts of all conversations, even if their newest messages together exceed 8 MiB",
  async (t) => {
    const source = await startSource(t, TOKEN);
    const counts: string[] = [];
    for (const bytes of [10, 4_500_000]) {
      const node = await startBroker(t, {
        JINDOU_MESSAGES_MAX_PAYLOAD_BYTES: "8000000",
        JINDOU_CLIENT_MAX_FRAME_BYTES: "8100000",
        JINDOU_CLIENT_MAX_BUFFERED_BYTES: "8100000",
        JINDOU_API_MAX_BODY_BYTES: "16000000",
      });
      for (const rows of [source.messages.of(TEAM, 2), source.messages.of("club", 2)]) {
        const row = rows.pop();
        if (row !== undefined)
          rows.push({ ...row, payload: Buffer.alloc(bytes).toString("base64") });
      }
      const { code, stdout, stderr } = await runImport(t, source, node, ["--close"]);
      t.equal(code, 0, stdout + stderr);
      counts.push(JSON.parse(stdout).warnings[0].split(" ")[0]);
    }
    t.equal(counts[0], counts[1], "no conversation is missing from the node's reply");
  },
);

t.test(
  "an import, but not a dry run, fails if its output cannot be written any more",
  async (t) => {
    const source = await startSource(t, TOKEN);
    const node = await startBroker(t);
    const to = `--to=http://127.0.0.1:${node.apiPort}`;
    const copy = spawnJindou(t, ["import", "wukongim", `--from=${source.url}`, to, "--close"], {
      env: { JINDOU_IMPORT_TOKEN: TOKEN },
    });
    for (const output of [copy.child.stdout, copy.child.stderr]) output?.destroy();
    t.match(await copy.exit, { code: 1 });
    t.match((await node.call("/admin/import")).body, { state: "open" });
    const survey = spawnJindou(t, ["import", "wukongim", `--from=${source.url}`, "--dry-run"], {
      env: { JINDOU_IMPORT_TOKEN: TOKEN },
    });
    survey.child.stdout?.destroy();
    t.match(await survey.exit, { code: 0 }, "a dry run copies nothing, so it has not failed");
  },
);

t.test(
  "repeating the import command completes a close that was interrupted, and the node is then ready",
  async (t) => {
    const source = await startSource(t, TOKEN);
    const redis = await startRedis(t);
    const node = await startBroker(t, { JINDOU_REDIS_URL: redis.url });
    const first = await runImport(t, source, node);
    t.equal(first.code, 0, first.stdout + first.stderr);
    // A node that was killed during the close leaves this phase in the store.
    await redis.client().hset("jd:{all}:import", "phase", "closing");
    t.match(await runImport(t, source, node, ["--close"]), {
      code: 1,
      stderr: /a closed import cannot be opened again/,
    });
    t.match((await node.call("/admin/import")).body, { state: "closed" });
    t.equal((await node.call("/readyz")).status, 200);
  },
);

for (const store of ["embedded", "redis"] as const)
  t.test(
    `${store}: an import that is repeated after the command or the node was killed stores every message once`,
    async (t) => {
      const source = await startSource(t, TOKEN);
      source.messages.add(TEAM, 2, "ann", 6000);
      source.messages.add("ann@ben", 1, "ann", 3000);
      const settings = store === "redis" ? await redisSettings(t) : {};
      const dataPath = join(await tempFolder(t), "data");
      let node = await spawnBroker(t, settings, dataPath);
      // The second node on Redis is never killed. It must also report that the import is open.
      const witness = store === "redis" ? await spawnBroker(t, settings) : undefined;
      for (let kill = 0; kill < KILLS; kill++) {
        const to = `--to=http://127.0.0.1:${node.apiPort}`;
        const copy = spawnJindou(t, ["import", "wukongim", `--from=${source.url}`, to], {
          env: { JINDOU_IMPORT_TOKEN: TOKEN },
        });
        const before = source.requests.length;
        while (source.requests.length < before + 60 + 40 * kill && copy.child.exitCode === null)
          await new Promise((resolve) => setTimeout(resolve, 5));
        if (kill % 2 === 1) await node.kill();
        copy.child.kill("SIGKILL");
        await copy.exit;
        if (kill % 2 === 1) node = await spawnBroker(t, settings, dataPath);
        source.messages.add("club", 2, "ann", 5);
      }
      if (witness !== undefined) t.equal((await witness.call("/readyz")).status, 503);
      const { code, stdout, stderr } = await runImport(t, source, witness ?? node, ["--close"]);
      t.equal(code, 0, stdout + stderr);
      const club = "channel_id=club&channel_type=2";
      t.same(await historyOf(node, club), sourceTexts(source, "club", 2));
      const team = `channel_id=${TEAM}&channel_type=2`;
      t.same(await historyOf(node, team), sourceTexts(source, TEAM, 2));
      const { body } = await node.call("/admin/import");
      t.match(body, { state: "closed" });
      t.ok(body.stored.message >= 9000);
      t.equal((await node.call("/readyz")).status, 200);
      await node.terminate();
      await witness?.terminate();
    },
  );

async function redisSettings(t: Test) {
  const { url } = await startRedis(t);
  return { JINDOU_REDIS_URL: url };
}
