// What does streamed text cost? First measures 1,000 simultaneous streams of 20 chunks per second
// with one viewer each: the time from the POST of a chunk until the viewer receives it, and the CPU
// time. Then measures one stream with 1,000 viewers: the deliveries per second, compared with
// publishing on the raw server.

import { randomUUID } from "node:crypto";
import { STREAM_START } from "../src/broker/model.ts";
import { Backend, TOKEN } from "./support/backend.ts";
import type { Bench, Benchmark, Row, Sample, Subject } from "./support/benchmark.ts";
import {
  CONNECTION_NUMBER,
  chunkBody,
  connectFrame,
  connectionNumber,
  eventBody,
  frameStart,
  httpRequest,
  NATIVE_UPGRADE,
  type StreamName,
  sampleChunk,
  upgradeRequest,
} from "./support/frames.ts";
import { compileLoad, LoadClient, type Opening } from "./support/load.ts";
import { alternate, compare } from "./support/rounds.ts";
import { type Server, startBroker, startRaw } from "./support/servers.ts";
import { row } from "./support/stats.ts";

const PATH = "/event";
const PRODUCER = "assistant";
const VIEWER = `viewer${CONNECTION_NUMBER}`;
const GROUP = { id: "everyone", type: 2 } as const;
/** Chunks per second of one stream, about the speed of a language model. */
const RATE = 20;
/** Number of frames that a viewer receives first: CONNACK, and a snapshot of the stream. */
const REPLIES = 2;

interface Contender {
  readonly server: Server;
  readonly opening: Opening;
  /** Client of the HTTP API. Absent for the raw server, which has no streams to start. */
  readonly backend?: Backend;
}

export const stream: Benchmark = {
  name: "stream",
  question: "POST /event to viewers: 1000 streams with one viewer each, one stream with 1000",
  isPinned: true,

  async run(bench) {
    const viewers = bench.plan.isQuick ? 50 : 1000;
    const load = new LoadClient(bench.workbench, await compileLoad());
    return [
      ...(await measureManyStreams(bench, load, viewers)),
      ...(await measureOneStream(bench, load, viewers)),
    ];
  },
};

function viewerName(index: number): string {
  return VIEWER.replace(CONNECTION_NUMBER, connectionNumber(index));
}

function namesOf(viewers: number): readonly string[] {
  return Array.from({ length: viewers }, (_, at) => viewerName(at));
}

// --- Many streams with one viewer each -----------------------------------------------------------

/**
 * Returns a stream from the producer to one user. The user sees the producer's uid as the id of the
 * channel.
 */
function personalStream(viewer: string): StreamName {
  const channel = { id: viewer, type: 1 } as const;
  return { channel, fromUid: PRODUCER, clientMsgNo: "stream" };
}

async function measureManyStreams(
  bench: Bench,
  load: LoadClient,
  streams: number,
): Promise<readonly Row[]> {
  const frame = sampleChunk(personalStream(VIEWER), { id: PRODUCER, type: 1 });
  const samples = await alternate(bench, async (subject) => {
    const contender = await startManyStreams(bench, subject, { streams, frame });
    const { server, opening } = contender;
    const sample = await load.stream({
      port: server.clientPort,
      pid: server.pid,
      connections: streams,
      opening,
      replyStart: frameStart(frame),
      publishPort: server.apiPort,
      message: httpRequest(PATH, chunkBody(personalStream(VIEWER))),
      rate: RATE,
      plan: bench.plan,
    });
    await stop(contender);
    return sample;
  });
  const title = `${streams} streams of ${RATE} chunks/s, one viewer each`;
  const [baseline, ours] = samples.map((subjectSamples) => subjectSamples.map(shareOfCore));
  return [
    row({ title, unit: "chunks/s" }, bench.subjects, samples),
    row({ title: `${title}: processor time`, unit: "% of a core" }, bench.subjects, [
      baseline ?? [],
      ours ?? [],
    ]),
  ];
}

function shareOfCore({ value, cpuUs = 0 }: Sample): Sample {
  return { value: (value * cpuUs) / 10_000 };
}

async function startManyStreams(
  { workbench }: Bench,
  subject: Subject,
  { streams, frame }: { readonly streams: number; readonly frame: Uint8Array },
): Promise<Contender> {
  if (subject.kind === "raw") {
    const server = await startRaw(workbench, "stream", frame);
    return { server, opening: { upgrade: upgradeRequest(`/${VIEWER}`) } };
  }
  const server = await startBroker(workbench, subject);
  const backend = new Backend(server.apiPort);
  const viewers = namesOf(streams);
  await backend.registerUsers(viewers);
  for (const viewer of viewers) await startStream(backend, personalStream(viewer));
  return { server, backend, opening: viewerOpening() };
}

// --- One stream with many viewers ----------------------------------------------------------------

/**
 * Returns a new stream in the group. Each measurement needs a new stream, because the size of a
 * stream is limited.
 */
function groupStream(): StreamName {
  return { channel: GROUP, fromUid: PRODUCER, clientMsgNo: randomUUID() };
}

async function measureOneStream(
  bench: Bench,
  load: LoadClient,
  viewers: number,
): Promise<readonly Row[]> {
  const frame = sampleChunk(groupStream(), GROUP);
  return compare(bench, {
    start: (subject) => startOneStream(bench, subject, { viewers, frame }),
    stop,
    questions: [4, 16].map((depth) => ({
      title: `one stream with ${viewers} viewers, ${depth} in flight`,
      unit: "deliveries/s",
      target: { kind: "ratio", atLeast: 0.7 },
      measure: async ({ server, opening, backend }) => {
        const stream = groupStream();
        if (backend !== undefined) await startStream(backend, stream);
        return load.fanout({
          port: server.clientPort,
          pid: server.pid,
          connections: viewers,
          depth,
          opening,
          replyStart: frameStart(frame),
          message: httpRequest(PATH, chunkBody(stream)),
          publishPort: server.apiPort,
          publishOpening: undefined,
          plan: bench.plan,
        });
      },
    })),
  });
}

async function startOneStream(
  { workbench }: Bench,
  subject: Subject,
  { viewers, frame }: { readonly viewers: number; readonly frame: Uint8Array },
): Promise<Contender> {
  if (subject.kind === "raw") {
    const server = await startRaw(workbench, "fanout", frame);
    return { server, opening: { upgrade: NATIVE_UPGRADE } };
  }
  const server = await startBroker(workbench, subject);
  const backend = new Backend(server.apiPort);
  const members = namesOf(viewers);
  await backend.registerUsers(members);
  await backend.createGroup(GROUP.id, [...members, PRODUCER]);
  return { server, backend, opening: viewerOpening() };
}

// --- Both ----------------------------------------------------------------------------------------

function viewerOpening(): Opening {
  const open = connectFrame(VIEWER, TOKEN);
  return { upgrade: NATIVE_UPGRADE, open, replies: REPLIES };
}

/** Starts a stream. `force` cancels the channel's previous stream. */
async function startStream(backend: Backend, stream: StreamName): Promise<void> {
  const start = { type: STREAM_START, data: "" };
  await backend.post(`${PATH}?force=1`, eventBody(stream, start));
}

async function stop({ server, backend }: Contender): Promise<void> {
  backend?.close();
  await server.stop();
}
