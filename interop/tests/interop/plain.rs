use polyrail_interop::addresses::{CLOUD, Family, SERVER};
use polyrail_interop::download::Download;
use polyrail_interop::lab::Lab;
use polyrail_interop::web::WebServer;

#[test]
fn wires() -> anyhow::Result<()> {
    let lab = Lab::new()?;
    lab.wire_carrier(0)?;
    lab.wire_carrier(1)?;
    let web = WebServer::start(&lab.server, lab.folder(), 80)?;
    let file = web.add(20_000_000, 1)?;
    polyrail_interop::dns::serve(&lab.server)?;
    let web2 = WebServer::start(
        &lab.cloud,
        &{
            let f = lab.folder().join("x");
            std::fs::create_dir_all(&f)?;
            f
        },
        81,
    )?;
    let file2 = web2.add(2_000_000, 1)?;
    let target = lab.folder().join("target");
    for family in Family::BOTH {
        let host = match family {
            Family::V4 => format!("{}", SERVER.v4),
            Family::V6 => format!("[{}]", SERVER.v6),
        };
        let r = Download::new(&host, &file.name, &target).verify(&lab.passenger, &file)?;
        println!("{r:?}");
        for i in ["wan0", "wan1"] {
            let host = match family {
                Family::V4 => format!("{}:81", CLOUD.v4),
                Family::V6 => format!("[{}]:81", CLOUD.v6),
            };
            let r = Download::new(&host, &file2.name, &target)
                .interface(i)
                .verify(&lab.gateway, &file2)?;
            println!("{i} {r:?}");
        }
    }
    Ok(())
}
