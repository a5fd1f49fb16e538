// Drives the admin API knowing nothing but its address: node client.js HOST:PORT TOKEN_FILE
//
// The descriptors come from the server's reflection service; each step prints one line of JSON.
"use strict";

const fs = require("node:fs");
const path = require("node:path");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const SERVICE = "mirage.v1.AdminService";
const OPTIONS = { keepCase: true, longs: Number, enums: String, defaults: true };
const [address, tokenFile] = process.argv.slice(2);
const metadata = new grpc.Metadata();
metadata.set("authorization", `Bearer ${fs.readFileSync(tokenFile, "utf8").trim()}`);
const plain = grpc.credentials.createInsecure();

function reflected(symbol) {
  const folder = path.dirname(require.resolve("@grpc/reflection/package.json"));
  const file = path.join(folder, "build/proto/grpc/reflection/v1alpha/reflection.proto");
  const { grpc: packages } = grpc.loadPackageDefinition(loader.loadSync(file, { keepCase: true }));
  const client = new packages.reflection.v1alpha.ServerReflection(address, plain);
  return new Promise((resolve, reject) => {
    const call = client.ServerReflectionInfo(metadata);
    const asked = new Set();
    const files = new Map();
    let waiting = 0;
    const ask = (request) => {
      const key = JSON.stringify(request);
      if (asked.has(key)) return;
      asked.add(key);
      waiting += 1;
      call.write(request);
    };
    call.on("error", reject);
    call.on("data", (response) => {
      if (response.error_response) return reject(new Error(response.error_response.error_message));
      for (const bytes of response.file_descriptor_response.file_descriptor_proto) {
        files.set(Buffer.from(bytes).toString("latin1"), Buffer.from(bytes));
        for (const name of dependencies(Buffer.from(bytes))) ask({ file_by_filename: name });
      }
      waiting -= 1;
      if (waiting === 0) {
        call.end();
        client.close();
        resolve([...files.values()]);
      }
    });
    ask({ file_containing_symbol: symbol });
  });
}

// Field 3 of FileDescriptorProto: the files that a file imports.
function dependencies(bytes) {
  const found = [];
  let at = 0;
  const varint = () => {
    let value = 0;
    for (let shift = 0; ; shift += 7) {
      const byte = bytes[at++];
      value += (byte & 127) * 2 ** shift;
      if (byte < 128) return value;
    }
  };
  while (at < bytes.length) {
    const tag = varint();
    if ((tag & 7) === 0) {
      varint();
      continue;
    }
    const length = varint();
    if (tag >> 3 === 3) found.push(bytes.toString("utf8", at, at + length));
    at += length;
  }
  return found;
}

// A FileDescriptorSet: each file under field 1.
function setOf(files) {
  const parts = [];
  for (const file of files) {
    const head = [0x0a];
    let length = file.length;
    for (; length > 127; length = Math.floor(length / 128)) head.push((length % 128) | 128);
    parts.push(Buffer.from([...head, length]), file);
  }
  return Buffer.concat(parts);
}

async function main() {
  const files = await reflected(SERVICE);
  const definition = loader.loadFileDescriptorSetFromBuffer(setOf(files), OPTIONS);
  const Admin = grpc.loadPackageDefinition(definition).mirage.v1.AdminService;
  const client = new Admin(address, plain);
  const say = (step, value) => console.log(JSON.stringify({ step, ...value }));
  const call = (method, request) =>
    new Promise((resolve, reject) =>
      client[method](request, metadata, (error, response) =>
        error ? reject(error) : resolve(response),
      ),
    );
  say("reflect", { files: files.length, methods: Object.keys(Admin.service).length });

  const wish = { name: "reflected", weights_digest: "ab", spec: { weights_bytes: 4096 } };
  const made = await call("RegisterModel", { wish });
  say("register", { uid: made.model.wish.uid, revision: made.model.provenance.revision });
  await call("SetModelPriority", { name: "reflected", priority: -7 });
  const read = await call("GetModel", { name: "reflected" });
  say("get", { priority: read.model.wish.priority, state: read.model.wish.state });
  const failed = await call("GetModel", { name: "nobody" }).catch((error) => error);
  say("missing", { code: failed.code, message: failed.details });

  const watch = client.Watch({ kinds: ["RESOURCE_KIND_MODEL"] }, metadata);
  const seen = [];
  for await (const response of watch) {
    seen.push(response.body || Object.keys(response).find((key) => response[key] && key !== "sequence"));
    if (response.snapshot_end) break;
  }
  watch.cancel();
  say("watch", { messages: seen.length });
  await call("DeleteModel", { name: "reflected" });
  say("delete", {});
  client.close();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
