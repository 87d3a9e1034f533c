// Checks replies against the OpenAPI document and against the headers that every reply must have.
// State: the document of each dialect, which is read once, its paths, and the compiled schemas.

import assert from "node:assert/strict";
import type { TSchema } from "typebox";
import { Compile } from "typebox/compile";
import type { HttpRequest } from "../../src/transport/types.ts";
import type { Reply } from "./harness.ts";

// biome-ignore lint/suspicious/noExplicitAny: a parsed JSON document
export type OpenApi = any;

/** Documents of the dialects, by dialect. */
const documents = new Map<string, Promise<OpenApi>>();
/** Checks of compiled schemas, by the schema in its document. */
const checks = new Map<OpenApi, (value: unknown) => boolean>();
/** Patterns and operations of the paths of a document. */
const pathsOf = new Map<OpenApi, readonly (readonly [RegExp, OpenApi])[]>();

/** Checks the status and the body of a reply. `read` reads the document at the first call. */
export async function checkAgainstDocument(
  request: HttpRequest,
  reply: Reply,
  dialect: string,
  read: () => Promise<OpenApi>,
): Promise<void> {
  const reading = documents.get(dialect) ?? read();
  documents.set(dialect, reading);
  const document = await reading;
  const method = request.method.toLowerCase();
  const operation = operationOf(document, request.path)?.[method];
  if (operation === undefined) return; // the path or the method is unknown
  const { status, json } = reply;
  const documented = operation.responses[status];
  const call = `${request.method} ${request.path} ${status} ${json?.code ?? ""}`;
  assert.ok(documented, `${call} is documented`);
  if (status >= 400 && dialect === "jindou")
    assert.ok(
      documented.description.split(", ").includes(json.code),
      `the code of ${call} is documented`,
    );
  if (json === undefined) return;
  const { schema } = documented.content["application/json"];
  const named = document.components.schemas[nameOf(schema.$ref)] ?? schema;
  const check = checks.get(named) ?? compile(dereferenced(named, document));
  checks.set(named, check);
  assert.ok(check(json), `the body of ${call} matches its schema`);
}

/** Returns the schema with all references replaced by the schemas that they name. */
export function dereferenced(schema: OpenApi, document: OpenApi): OpenApi {
  if (typeof schema !== "object" || schema === null) return schema;
  if (Array.isArray(schema)) return schema.map((item) => dereferenced(item, document));
  const { $ref } = schema;
  if (typeof $ref === "string")
    return dereferenced(document.components.schemas[nameOf($ref)], document);
  return Object.fromEntries(
    Object.entries(schema).map(([key, value]) => [key, dereferenced(value, document)]),
  );
}

/** Returns the name of the schema to which a reference points. */
const nameOf = (reference = ""): string => reference.replace("#/components/schemas/", "");

function operationOf(document: OpenApi, path: string): OpenApi {
  let paths = pathsOf.get(document);
  paths ??= Object.entries(document.paths).map(([template, operations]) => [
    new RegExp(`^${template.replaceAll(/\{\w+\}/g, "[^/]+")}$`),
    operations,
  ]);
  pathsOf.set(document, paths);
  return paths.find(([pattern]) => pattern.test(path))?.[1];
}

function compile(schema: TSchema): (value: unknown) => boolean {
  const validator = Compile(schema);
  return (value) => validator.Check(value);
}

/** Checks the headers of a reply and, for an error reply, the fields of its body. */
export function checkHeaders({ status, headers, json }: Reply, dialect: string): void {
  assert.match(headers["cache-control"] ?? "", /^(private, )?no-store$/);
  assert.equal(headers["x-content-type-options"], "nosniff");
  if (status < 300) return;
  if (dialect === "jindou") {
    assert.match(json.error, /^\S.+/);
    assert.match(json.code, /^[a-z_]+$/);
    assert.equal(json.status, status);
  } else if (status !== 401) {
    assert.match(json.msg, /^\S.+/);
    assert.deepEqual(Object.keys(json), ["msg", "status"]);
  }
  assert.equal(headers["www-authenticate"], status === 401 ? "Bearer" : undefined);
  const mayRetry = status === 429 || status === 503;
  assert.equal(headers["retry-after"] !== undefined, mayRetry);
}
