// Who may go on reading: at the visits, and as soon as a viewer's right may have changed.

import { BrokerError } from "../../src/broker/errors.ts";
import { STREAM_CONTENT, STREAM_START } from "../../src/broker/model.ts";
import { t } from "../support/suite.ts";
import { until } from "../transport/support.ts";
import { FeedReader } from "./feed-reader.ts";
import { startFeeds } from "./feed-world.ts";

t.test("a viewer who may no longer read is let go", async (t) => {
  let isMember = true;
  const admit = async () => {
    if (!isMember) throw new BrokerError("not_in_channel");
  };
  const { port, say } = await startFeeds(t, { keepAliveMs: 15, admit });
  say(STREAM_START, "");
  const path = "/stream/2/g/answer?uid=carol&token=t";
  const viewer = new FeedReader(t, port, { path });
  const backend = new FeedReader(t, port);
  await viewer.has(1);
  await backend.has(1);
  isMember = false;
  await until(() => viewer.isWhole);
  say(STREAM_CONTENT, "secret");
  await backend.has(2);
  t.notMatch(viewer.text, "secret");
  const back = new FeedReader(t, port, { path });
  await back.client.has("not_in_channel");
  t.equal(back.status, 404);
});

t.test("a viewer whose right may have changed is judged at once", async (t) => {
  let isMember = true;
  const admit = async () => {
    if (!isMember) throw new BrokerError("not_in_channel");
  };
  const { port, say, hear } = await startFeeds(t, { admit });
  say(STREAM_START, "");
  const path = "/stream/2/g/answer?uid=carol&token=t";
  const viewer = new FeedReader(t, port, { path });
  const backend = new FeedReader(t, port);
  await viewer.has(1);
  await backend.has(1);
  hear({ kind: "credential", uid: "carol" });
  say(STREAM_CONTENT, "still");
  await viewer.has(2);
  isMember = false;
  hear({ kind: "removal", channelId: "g", uids: ["carol"] });
  say(STREAM_CONTENT, "secret");
  await until(() => viewer.isWhole);
  await backend.has(3);
  t.notMatch(viewer.text, "secret");
});

t.test("who follows with a manager's token is let go when that ends", async (t) => {
  const { port, say, api } = await startFeeds(t, {
    api: { requiresCredential: true },
    keepAliveMs: 15,
  });
  say(STREAM_START, "");
  const authorization = await api.login();
  const manager = new FeedReader(t, port, { authorization });
  await manager.has(1);
  await until(() => manager.text.endsWith(":\n\n:\n\n"));
  t.notOk(manager.isWhole, "it stays while the token is valid");
  await api.managers.logout(authorization.slice("Bearer ".length));
  await until(() => manager.isWhole);
  const back = new FeedReader(t, port, { authorization });
  await back.client.has("unauthorized");
  t.equal(back.status, 401);
});
