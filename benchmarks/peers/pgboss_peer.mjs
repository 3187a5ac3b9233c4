// pg-boss in its own environment, for what its own code does around rows that SQL wrote.
//
//     node pgboss_peer.mjs FOLDER URL prepare QUEUES     its tables, and queues type_1 and so on
//     node pgboss_peer.mjs FOLDER URL counted 0          its counts of each queue, by its own supervision
//
// FOLDER has its node_modules. A queue keeps its finished jobs for so many days instead of seven.
import { pathToFileURL } from 'node:url'

const KEPT_DAYS = 100
const [folder, url, verb, number] = process.argv.slice(2)
const { PgBoss } = await import(pathToFileURL(`${folder}/node_modules/pg-boss/dist/index.js`))
const boss = new PgBoss({
  connectionString: url, supervise: false, schedule: false, monitorIntervalSeconds: 1, maintenanceIntervalSeconds: 1
})
await boss.start()
if (verb === 'prepare') {
  for (let n = 1; n <= Number(number); n++) {
    await boss.createQueue(`type_${n}`, { deleteAfterSeconds: KEPT_DAYS * 86_400 })
  }
} else {
  // The first pass counts what is kept, the second one adds it to what waits.
  for (let pass = 1; pass <= 2; pass++) {
    await boss.supervise()
    await new Promise(resolve => setTimeout(resolve, 1500))
  }
}
await boss.stop({ graceful: false })
